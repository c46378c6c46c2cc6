//! How a process that sleeps is woken by its neighbours.
//!
//! Each process has one doorbell: a word in memory that it shares with all its local peers, which
//! says whether it is awake, and if not, how it sleeps. A peer that has published something reads
//! the word and makes a system call only if the process sleeps.
//!
//! No wake-up is lost. The sleeper announces its sleep, executes a full fence, and then looks once
//! more whether there is work; the peer publishes its work, executes a full fence, and then reads
//! the word. Whichever fence comes second in their total order, the side that executed it sees
//! what the other wrote before its own: the sleeper finds the work and stays up, or the peer finds
//! the announcement and rings. The peer takes the announcement down with an exchange and acts on
//! what the exchange returns, so that of several peers one makes the system call. If it dies
//! between the two, its own control socket's end of file wakes the sleeper (which looks at these
//! sockets at intervals where it sleeps on the word itself).

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::Duration;

use rustix::net::SendFlags;
use rustix::thread::futex;
use rustix::time::Timespec;

use crate::shared_memory::Mapping;

const AWAKE: u32 = 0;
const ASLEEP_ON_WORD: u32 = 1;
const ASLEEP_IN_EPOLL: u32 = 2;

const PAGE_BYTES: usize = 4096;

/// How a process sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sleep {
    /// In a futex wait on the doorbell's word.
    OnWord,
    /// In `epoll_wait`.
    InEpoll,
}

/// The word by which one process is woken, shared with all processes that may wake it.
#[derive(Debug)]
pub struct Doorbell {
    mapping: Mapping,
}

impl Doorbell {
    /// Makes the doorbell of this process. The descriptor goes to its peers.
    ///
    /// # Errors
    ///
    /// What the system says when it has no memory or descriptors left.
    pub fn create() -> io::Result<(Doorbell, OwnedFd)> {
        let (mapping, file) = Mapping::create("gradwire-doorbell", PAGE_BYTES)?;
        Ok((Doorbell { mapping }, file))
    }

    /// Maps the doorbell of a peer.
    ///
    /// # Errors
    ///
    /// `InvalidData` if the file can't be a doorbell.
    pub fn open(file: OwnedFd) -> io::Result<Doorbell> {
        Ok(Doorbell { mapping: Mapping::open(&file, PAGE_BYTES, PAGE_BYTES)? })
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: the mapping is a page, page aligned, and any bits are a valid atomic integer.
        unsafe { self.mapping.base().cast().as_ref() }
    }

    /// Wakes the owner if it sleeps. What it is woken for has been published before. `control` is
    /// the socket that the owner watches when it sleeps in `epoll_wait`.
    pub(crate) fn ring(&self, control: BorrowedFd<'_>) {
        self.ring_or(|| {
            // A full socket holds bytes that wake the owner just as well, and one that is broken
            // belongs to an owner that is gone.
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            let _ = rustix::net::send(control, &[1], flags);
        });
    }

    /// Like [`Doorbell::ring`], with another way to end an `epoll_wait`.
    pub(crate) fn ring_or(&self, end_epoll: impl FnOnce()) {
        fence(Ordering::SeqCst);
        if self.word().load(Ordering::Relaxed) == AWAKE {
            return;
        }
        match self.word().swap(AWAKE, Ordering::SeqCst) {
            ASLEEP_ON_WORD => {
                let _ = futex::wake(self.word(), futex::Flags::empty(), 1);
            }
            ASLEEP_IN_EPOLL => end_epoll(),
            _ => {}
        }
    }

    /// The owner is about to sleep. It must look for work after this call and before it sleeps.
    pub(crate) fn announce(&self, sleep: Sleep) {
        let word = match sleep {
            Sleep::OnWord => ASLEEP_ON_WORD,
            Sleep::InEpoll => ASLEEP_IN_EPOLL,
        };
        // An exchange, so that whatever a peer published before it last took the word down is
        // visible to the look that follows.
        self.word().swap(word, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// The owner is awake.
    pub(crate) fn awake(&self) {
        self.word().store(AWAKE, Ordering::Relaxed);
    }

    /// Whether an announcement still stands.
    pub(crate) fn announced(&self) -> bool {
        self.word().load(Ordering::Acquire) != AWAKE
    }

    /// The owner sleeps until it is rung, the time is over, or a signal comes.
    pub(crate) fn wait(&self, timeout: Duration) {
        let timeout = Timespec {
            tv_sec: timeout.as_secs().min(i64::MAX as u64) as i64,
            tv_nsec: timeout.subsec_nanos().into(),
        };
        // Every error (the word has changed, the time is over, a signal) is a reason to look.
        let _ = futex::wait(self.word(), futex::Flags::empty(), ASLEEP_ON_WORD, Some(&timeout));
    }
}
