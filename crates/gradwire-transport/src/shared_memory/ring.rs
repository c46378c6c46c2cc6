//! A ring of frames with one producer and one consumer, in memory that a peer may scribble on.
//!
//! A frame is its header and its payload, padded to whole blocks of 64 bytes and never wrapped: a
//! frame that doesn't fit before the end of the ring is preceded by a skip marker. `head` and
//! `tail` count bytes since the beginning; the ring's own position is kept privately by each side,
//! and what the other side publishes is checked before it is used, so that a broken peer can
//! garble payloads but never cause an access outside of the ring.

use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use gradwire_core::{HEADER_BYTES, Header};

use super::mapping::Mapping;
use crate::lane::LaneError;

/// Alignment of frames.
pub(super) const BLOCK_BYTES: usize = 64;
/// First byte of a skip marker; no frame kind has this code.
const SKIP: u8 = 0xff;

/// An atomic on a cache line of its own (two lines: adjacent lines are fetched in pairs).
#[repr(C, align(128))]
#[derive(Debug)]
struct Line<T>(T);

/// The shared indices of one ring.
#[repr(C)]
#[derive(Debug)]
pub(super) struct RingControl {
    /// Bytes published by the producer.
    head: Line<AtomicU64>,
    /// Bytes released by the consumer.
    tail: Line<AtomicU64>,
    /// Whether the producer waits for room and wants its doorbell rung.
    starved: Line<AtomicU32>,
}

/// One ring within a mapping.
#[derive(Debug)]
pub(super) struct Ring {
    control: *const RingControl,
    data: NonNull<u8>,
    bytes: usize,
    /// Keeps the memory mapped.
    _mapping: Arc<Mapping>,
}

// SAFETY: the memory is shared between processes anyway; one ring end is used by one thread at a
// time because all that touches it takes the end by reference, and ends are not `Sync`.
unsafe impl Send for Ring {}

impl Ring {
    /// `control` and the `bytes` bytes from `data` must lie in `mapping`; `bytes` is a multiple of
    /// the block size.
    pub(super) fn new(
        mapping: Arc<Mapping>,
        control: *const RingControl,
        data: NonNull<u8>,
        bytes: usize,
    ) -> Self {
        debug_assert!(bytes.is_multiple_of(BLOCK_BYTES));
        Ring { control, data, bytes, _mapping: mapping }
    }

    fn control(&self) -> &RingControl {
        // SAFETY: `control` lies in the mapping that `self` keeps alive, and consists of atomics.
        unsafe { &*self.control }
    }
}

/// Bytes of the ring that a frame takes.
pub(super) fn padded(payload_bytes: usize) -> usize {
    HEADER_BYTES + payload_bytes.next_multiple_of(BLOCK_BYTES)
}

/// The sending end.
#[derive(Debug)]
pub(super) struct Producer {
    ring: Ring,
    head: u64,
    /// `head` as a position in the ring.
    position: usize,
    /// The consumer's index when it was last looked at.
    tail: Cell<u64>,
}

impl Producer {
    pub(super) fn new(ring: Ring) -> Self {
        Producer { ring, head: 0, position: 0, tail: Cell::new(0) }
    }

    /// Whether a frame with so large a payload fits now.
    pub(super) fn has_room(&self, payload_bytes: usize) -> Result<bool, LaneError> {
        let frame = padded(payload_bytes);
        let contiguous = self.ring.bytes - self.position;
        let needed = if frame <= contiguous { frame } else { contiguous + frame };
        if self.free(self.tail.get()) >= needed {
            return Ok(true);
        }
        let tail = self.ring.control().tail.0.load(Ordering::Acquire);
        let used = self.head.wrapping_sub(tail);
        if used > self.ring.bytes as u64 || !used.is_multiple_of(BLOCK_BYTES as u64) {
            return Err(corrupt("tail", tail, self.head));
        }
        self.tail.set(tail);
        Ok(self.free(tail) >= needed)
    }

    fn free(&self, tail: u64) -> usize {
        self.ring.bytes - self.head.wrapping_sub(tail) as usize
    }

    /// Tells the consumer that the producer waits for room. Room must be looked for afterwards.
    pub(super) fn announce_starvation(&self) {
        self.ring.control().starved.0.store(1, Ordering::Relaxed);
        // Pairs with the fence in `Consumer::release`: either the consumer sees the announcement
        // or the producer sees the room.
        fence(Ordering::SeqCst);
    }

    /// Copies a frame into the ring and publishes it.
    ///
    /// # Safety
    ///
    /// `has_room(bytes)` has just said yes, and `payload` is valid for `bytes` bytes.
    pub(super) unsafe fn push(
        &mut self,
        header: &[u8; HEADER_BYTES],
        payload: *const u8,
        bytes: usize,
    ) {
        let frame = padded(bytes);
        let contiguous = self.ring.bytes - self.position;
        if frame > contiguous {
            // SAFETY: positions are multiples of the block size below `ring.bytes`.
            unsafe { self.ring.data.add(self.position).write_volatile(SKIP) };
            self.head = self.head.wrapping_add(contiguous as u64);
            self.position = 0;
        }
        // SAFETY: the frame fits between position and the ring's end, and within the free part,
        // which the consumer does not read before `head` is published. A consumer that does so
        // nevertheless, or a peer that writes here, sees or causes garbled bytes.
        unsafe {
            let target = self.ring.data.add(self.position).as_ptr();
            std::ptr::copy_nonoverlapping(header.as_ptr(), target, HEADER_BYTES);
            if bytes > 0 {
                std::ptr::copy_nonoverlapping(payload, target.add(HEADER_BYTES), bytes);
            }
        }
        self.head = self.head.wrapping_add(frame as u64);
        self.position += frame;
        if self.position == self.ring.bytes {
            self.position = 0;
        }
        self.ring.control().head.0.store(self.head, Ordering::Release);
    }
}

/// A frame in the ring.
#[derive(Debug)]
pub(super) struct Arrived {
    /// The header, copied out before it was looked at.
    pub(super) header: Header,
    /// First byte of the payload, `header.payload_bytes` of which lie within the ring.
    pub(super) payload: NonNull<u8>,
}

/// The receiving end.
#[derive(Debug)]
pub(super) struct Consumer {
    ring: Ring,
    tail: u64,
    /// `tail` as a position in the ring.
    position: usize,
    /// The producer's index when it was last looked at.
    head: u64,
}

impl Consumer {
    pub(super) fn new(ring: Ring) -> Self {
        Consumer { ring, tail: 0, position: 0, head: 0 }
    }

    pub(super) fn ring_bytes(&self) -> usize {
        self.ring.bytes
    }

    /// Whether the producer has published something that was not consumed.
    pub(super) fn has_arrived(&self) -> bool {
        self.tail != self.ring.control().head.0.load(Ordering::Acquire)
    }

    /// The next frame, if there is one. It stays in the ring until it is consumed and released.
    pub(super) fn peek(&mut self) -> Result<Option<Arrived>, LaneError> {
        loop {
            let mut available = self.head.wrapping_sub(self.tail) as usize;
            if available == 0 {
                let head = self.ring.control().head.0.load(Ordering::Acquire);
                let published = head.wrapping_sub(self.tail);
                if published > self.ring.bytes as u64
                    || !published.is_multiple_of(BLOCK_BYTES as u64)
                {
                    return Err(corrupt("head", head, self.tail));
                }
                if published == 0 {
                    return Ok(None);
                }
                self.head = head;
                available = published as usize;
            }
            let contiguous = self.ring.bytes - self.position;
            let header = self.read_header();
            if header[0] == SKIP {
                if contiguous > available {
                    return Err(corrupt("skip", contiguous as u64, available as u64));
                }
                self.advance(contiguous);
                continue;
            }
            let header = Header::decode(&header)?;
            let frame = padded(header.payload_bytes as usize);
            if frame > contiguous.min(available) {
                return Err(corrupt("frame", frame as u64, contiguous.min(available) as u64));
            }
            // SAFETY: the frame lies within the ring, as has just been checked.
            let payload = unsafe { self.ring.data.add(self.position + HEADER_BYTES) };
            return Ok(Some(Arrived { header, payload }));
        }
    }

    /// Copies the header out, so that what is checked is what is used.
    fn read_header(&self) -> [u8; HEADER_BYTES] {
        // SAFETY: position is a multiple of 64 below the ring's size, itself a multiple of 64, so
        // 64 bytes are there, and the ring starts on a page. Volatile: a peer that breaks the
        // rules may write at the same time, and the compiler must not read twice.
        let words: [u64; 8] =
            unsafe { self.ring.data.add(self.position).cast::<[u64; 8]>().read_volatile() };
        let mut bytes = [0; HEADER_BYTES];
        for (chunk, word) in bytes.chunks_exact_mut(8).zip(words) {
            chunk.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    /// Steps over the frame that `peek` has returned.
    pub(super) fn consume(&mut self, frame: &Arrived) {
        self.advance(padded(frame.header.payload_bytes as usize));
    }

    fn advance(&mut self, bytes: usize) {
        self.tail = self.tail.wrapping_add(bytes as u64);
        self.position += bytes;
        if self.position == self.ring.bytes {
            self.position = 0;
        }
    }

    /// Gives everything consumed back to the producer. True if the producer waits for room, in
    /// which case its doorbell is to be rung.
    pub(super) fn release(&self) -> bool {
        let control = self.ring.control();
        control.tail.0.store(self.tail, Ordering::Release);
        // Pairs with the fence in `Producer::announce_starvation`.
        fence(Ordering::SeqCst);
        control.starved.0.load(Ordering::Relaxed) != 0
            && control.starved.0.swap(0, Ordering::Relaxed) != 0
    }
}

fn corrupt(what: &str, value: u64, against: u64) -> LaneError {
    LaneError::Violation(format!("shared memory ring is corrupt: {what} {value} against {against}"))
}
