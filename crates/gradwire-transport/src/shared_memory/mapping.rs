//! Sealed anonymous files, mapped.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};

/// The seals that a file must carry before its mapping can be trusted: without them a peer could
/// truncate the file, and every access would raise SIGBUS.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// A whole memory file mapped for reading and writing, shared with other processes.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread; those who read and write it through
// its pointer answer for how they do so.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Makes a zeroed file of `bytes` bytes, seals its size and maps it. The descriptor is for
    /// the process that is to share it.
    pub(crate) fn create(name: &str, bytes: usize) -> io::Result<(Mapping, OwnedFd)> {
        let file = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&file, bytes as u64)?;
        rustix::fs::fcntl_add_seals(&file, SEALS)?;
        Ok((Mapping::map(&file, bytes)?, file))
    }

    /// Maps a file that another process made, provided that nobody can change its size.
    pub(crate) fn open(file: &OwnedFd, least: usize, most: usize) -> io::Result<Mapping> {
        let seals = rustix::fs::fcntl_get_seals(file)?;
        if !seals.contains(SealFlags::SHRINK | SealFlags::GROW) {
            return Err(invalid("shared memory from the peer is not sealed against resizing"));
        }
        let bytes = usize::try_from(rustix::fs::fstat(file)?.st_size).unwrap_or(usize::MAX);
        if bytes < least || bytes > most {
            return Err(invalid(&format!(
                "shared memory from the peer has {bytes} bytes, expected {least} to {most}"
            )));
        }
        Mapping::map(file, bytes)
    }

    fn map(file: &impl AsFd, bytes: usize) -> io::Result<Mapping> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no other memory.
        let base = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), bytes, protection, MapFlags::SHARED, file, 0)?
        };
        let base = NonNull::new(base.cast()).ok_or_else(|| invalid("mapped at address zero"))?;
        Ok(Mapping { base, bytes })
    }

    /// Asks for large pages and touches all pages, so that the first frames don't pay for faults.
    pub(crate) fn populate(&self) {
        let base = self.base.as_ptr().cast();
        // SAFETY: the range is this mapping. Both are hints: a kernel that doesn't know them
        // costs speed only.
        unsafe {
            let _ = rustix::mm::madvise(base, self.bytes, Advice::LinuxHugepage);
            let _ = rustix::mm::madvise(base, self.bytes, Advice::LinuxPopulateWrite);
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The first byte; page aligned.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `map`, and whoever uses the pointer keeps `self` alive.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

pub(crate) fn invalid(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}
