//! The layout of the memory that two processes share.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::mapping::{Mapping, invalid};
use super::ring::{BLOCK_BYTES, Consumer, Producer, Ring, RingControl};

const MAGIC: u64 = u64::from_le_bytes(*b"gradwire");
const LAYOUT_VERSION: u32 = 1;
const PAGE_BYTES: usize = 4096;
/// Bytes before the first ring's data.
const PROLOGUE_BYTES: usize = PAGE_BYTES;
/// The largest segment that a peer may offer.
const MAX_SEGMENT_BYTES: usize = 1 << 30;

/// What the segment begins with.
#[repr(C)]
struct Prologue {
    magic: AtomicU64,
    version: AtomicU32,
    /// From the process that made the segment, and to it.
    rings: [RingControl; 2],
}

const _: () = assert!(size_of::<Prologue>() <= PROLOGUE_BYTES);

/// Memory shared by two processes, with one ring for each direction.
#[derive(Debug)]
pub struct Segment {
    mapping: Arc<Mapping>,
    ring_bytes: usize,
}

impl Segment {
    /// Makes a segment whose rings have room for `bytes_per_direction` bytes each, rounded up to
    /// whole pages. The descriptor goes to the peer, which calls [`Segment::open`].
    ///
    /// # Errors
    ///
    /// What the system says when it has no memory or descriptors left, and `InvalidInput` if the
    /// size is zero or more than 256 MiB.
    pub fn create(bytes_per_direction: usize) -> io::Result<(Segment, OwnedFd)> {
        if bytes_per_direction == 0 || bytes_per_direction > MAX_SEGMENT_BYTES / 4 {
            let text = format!("ring of {bytes_per_direction} bytes, allowed are 1 to 256 MiB");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let ring_bytes = bytes_per_direction.next_multiple_of(PAGE_BYTES);
        let bytes = PROLOGUE_BYTES + 2 * ring_bytes;
        let (mapping, file) = Mapping::create("gradwire-segment", bytes)?;
        mapping.populate();
        let segment = Segment { mapping: Arc::new(mapping), ring_bytes };
        segment.prologue().version.store(LAYOUT_VERSION, Ordering::Relaxed);
        segment.prologue().magic.store(MAGIC, Ordering::Release);
        Ok((segment, file))
    }

    /// Maps the segment that a peer made.
    ///
    /// # Errors
    ///
    /// `InvalidData` if the file is not a segment of this version or its size could change.
    pub fn open(file: OwnedFd) -> io::Result<Segment> {
        let mapping = Mapping::open(&file, PROLOGUE_BYTES + 2 * PAGE_BYTES, MAX_SEGMENT_BYTES)?;
        let ring_bytes = (mapping.bytes() - PROLOGUE_BYTES) / 2;
        if !ring_bytes.is_multiple_of(BLOCK_BYTES) {
            return Err(invalid("shared memory from the peer has an odd size"));
        }
        let segment = Segment { mapping: Arc::new(mapping), ring_bytes };
        let prologue = segment.prologue();
        if prologue.magic.load(Ordering::Acquire) != MAGIC {
            return Err(invalid("shared memory from the peer is not a gradwire segment"));
        }
        let version = prologue.version.load(Ordering::Relaxed);
        if version != LAYOUT_VERSION {
            return Err(invalid(&format!(
                "shared memory from the peer has layout {version}, this side has {LAYOUT_VERSION}"
            )));
        }
        segment.mapping.populate();
        Ok(segment)
    }

    /// Size of one ring.
    pub fn bytes_per_direction(&self) -> usize {
        self.ring_bytes
    }

    /// The ends of the two rings that belong to this process.
    pub(super) fn split(self, initiator: bool) -> (Producer, Consumer) {
        let (outgoing, incoming) = if initiator { (0, 1) } else { (1, 0) };
        (Producer::new(self.ring(outgoing)), Consumer::new(self.ring(incoming)))
    }

    fn ring(&self, index: usize) -> Ring {
        let control = &raw const self.prologue().rings[index];
        // SAFETY: prologue and both rings lie within the mapping, whose size was checked.
        let data = unsafe { self.mapping.base().add(PROLOGUE_BYTES + index * self.ring_bytes) };
        Ring::new(self.mapping.clone(), control, data, self.ring_bytes)
    }

    fn prologue(&self) -> &Prologue {
        // SAFETY: the mapping is page aligned and larger than the prologue, and the prologue
        // consists of atomics, for which every bit pattern is valid.
        unsafe { self.mapping.base().cast().as_ref() }
    }
}
