//! Codecs at the edge of a send: tiles are encoded as they leave and decoded where they land.
//!
//! What several steps spread of one chunk of the result is encoded once, and its owner takes over
//! what the others will decode, so that all ranks end with the same bits. The encoded tiles stay
//! here until the last of those steps has taken them: at most one chunk, encoded.

use gradwire_codec::Codec;
use gradwire_core::{Apply, Placement};
use gradwire_schedule::{Buffer, Slot, StepIndex};
use rustc_hash::FxHashMap;

use super::apply::Running;
use super::pool::Pool;
use crate::counters::{Counters, add};
use crate::memory::Memory;

/// A tile that is to leave.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tile {
    pub step: StepIndex,
    pub tile: u32,
    pub slot: Slot,
    /// Where it begins within its chunk, in bytes.
    pub offset: u64,
    /// The chunk of this rank's contribution that it belongs to, if it does.
    pub contribution: Option<u32>,
}

/// What an operation with a codec keeps.
#[derive(Debug)]
pub(super) struct Coding {
    codec: Codec,
    error: Vec<Memory>,
    seed: u64,
    /// What the error of a finished chunk is worth in units of one rank's contribution.
    error_weight: f32,
    /// Encoded tiles of chunks that several steps spread, by slot and tile.
    spreading: FxHashMap<(Slot, u32), Spreading>,
}

/// A tile that several steps spread.
#[derive(Debug)]
struct Spreading {
    encoded: Box<[u8]>,
    /// How many steps have yet to take it.
    readers: u32,
}

impl Coding {
    pub fn new(codec: Codec, error: Vec<Memory>, seed: u64, finish: Option<u32>) -> Self {
        let error_weight = finish.unwrap_or(1) as f32;
        Coding { codec, error, seed, error_weight, spreading: FxHashMap::default() }
    }

    /// Where the error of a tile goes, if it is wanted.
    fn error_of(&self, tile: Tile, elements: usize) -> Option<&'static mut [f32]> {
        let chunk = self.error.get(tile.contribution? as usize)?;
        let pointer = chunk.pointer.wrapping_add(tile.offset as usize);
        // SAFETY: the error has the layout of the slots that are sent from (checked when the
        // operation was prepared), and is the operation's alone while it is in flight.
        Some(unsafe { floats_mut(pointer, elements) })
    }

    fn seed_of(&self, tile: Tile) -> u64 {
        let place = u64::from(tile.slot.chunk) << 32 | u64::from(tile.tile);
        self.seed ^ place.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

fn copy_of(encoded: &[u8], pool: &mut Pool) -> Box<[u8]> {
    let mut copy = pool.take(encoded.len());
    copy.copy_from_slice(encoded);
    copy
}

/// # Safety
/// There are so many elements, and nobody else uses them meanwhile.
unsafe fn floats_mut(pointer: *mut u8, elements: usize) -> &'static mut [f32] {
    debug_assert!(pointer.cast::<f32>().is_aligned());
    // SAFETY: promised by the caller.
    unsafe { std::slice::from_raw_parts_mut(pointer.cast(), elements) }
}

impl Running {
    /// Whether the tiles of a send or receive travel encoded.
    pub fn is_encoded(&self, step: StepIndex) -> bool {
        self.coding.is_some() && self.plan.steps[step as usize].is_encoded
    }

    pub(super) fn tile_of(&self, step: StepIndex, tile: u32, slot: Slot, offset: u64) -> Tile {
        Tile { step, tile, slot, offset, contribution: self.plan.contribution(slot) }
    }

    /// The bytes of a tile for one receiver.
    pub(super) fn encode(&mut self, tile: Tile, pool: &mut Pool, counters: &Counters) -> Box<[u8]> {
        let spreads = self.plan.steps[tile.step as usize].spreads;
        let encoded = if spreads > 0 {
            self.encode_spreading(tile, spreads, pool, counters)
        } else {
            self.encode_part(tile, pool, counters)
        };
        let (_, bytes) = self.plan.tile(tile.step, tile.tile);
        add(&counters.bytes_before_codec, bytes.into());
        add(&counters.bytes_after_codec, encoded.len() as u64);
        encoded
    }

    /// A part of a sum: one receiver, and nobody here reads it again.
    fn encode_part(&mut self, tile: Tile, pool: &mut Pool, counters: &Counters) -> Box<[u8]> {
        let values = self.values(tile, pool, counters);
        let coding = self.coding.as_mut().expect("it has a codec");
        let mut encoded = pool.take(coding.codec.encoded_bytes(values.len()));
        let seed = coding.seed_of(tile);
        match coding.error_of(tile, values.len()) {
            Some(error) => coding.codec.encode_with_error(values, seed, &mut encoded, error),
            None => coding.codec.encode(values, seed, &mut encoded),
        }
        encoded
    }

    /// A part of the result: every receiver gets the same bytes.
    fn encode_spreading(
        &mut self,
        tile: Tile,
        spreads: u32,
        pool: &mut Pool,
        counters: &Counters,
    ) -> Box<[u8]> {
        let place = (tile.slot, tile.tile);
        let coding = self.coding.as_mut().expect("it has a codec");
        if let Some(spreading) = coding.spreading.get_mut(&place) {
            spreading.readers -= 1;
            if spreading.readers == 0 {
                return coding.spreading.remove(&place).expect("it was just there").encoded;
            }
            return copy_of(&spreading.encoded, pool);
        }
        let values = self.values(tile, pool, counters);
        let coding = self.coding.as_mut().expect("it has a codec");
        let mut encoded = pool.take(coding.codec.encoded_bytes(values.len()));
        let seed = coding.seed_of(tile);
        if tile.slot.buffer == Buffer::Input {
            // The caller's input stays what it is; the own piece of the output is decoded.
            match coding.error_of(tile, values.len()) {
                Some(error) => coding.codec.encode_with_error(values, seed, &mut encoded, error),
                None => coding.codec.encode(values, seed, &mut encoded),
            }
        } else {
            coding.take_over_decoded(tile, values, &mut encoded);
        }
        if spreads > 1 {
            let copy = copy_of(&encoded, pool);
            coding.spreading.insert(place, Spreading { encoded: copy, readers: spreads - 1 });
        }
        encoded
    }

    fn values(&mut self, tile: Tile, pool: &mut Pool, counters: &Counters) -> &'static mut [f32] {
        let (_, bytes) = self.plan.tile(tile.step, tile.tile);
        let pointer = self.address(tile.slot, tile.offset, tile.tile, pool, counters);
        // SAFETY: the plan was made from the lengths of this memory, which is the operation's
        // alone while it is in flight (the promise of `Communicator::submit`).
        unsafe { floats_mut(pointer, bytes as usize / size_of::<f32>()) }
    }

    /// Decodes a tile that has arrived to where it belongs.
    pub(super) fn apply_encoded(
        &mut self,
        placement: &Placement,
        received: *const u8,
        pool: &mut Pool,
        counters: &Counters,
    ) {
        let elements = placement.bytes as usize / size_of::<f32>();
        let codec = self.coding.as_ref().expect("it has a codec").codec;
        let finish = self.finish;
        let mut at =
            |slot: Slot| self.address(slot, placement.offset, placement.tile, pool, counters);
        // SAFETY: the core has compared the header's payload with the plan's wire bytes, which are
        // the codec's; the destinations have the plan's lengths and are the operation's alone.
        unsafe {
            let wire = std::slice::from_raw_parts(received, codec.encoded_bytes(elements));
            match placement.apply {
                Apply::Copy { destination } => {
                    codec.decode(wire, floats_mut(at(destination), elements));
                }
                Apply::Reduce { local, destination, last } => {
                    let (local, destination) = (at(local), at(destination));
                    let target = floats_mut(destination, elements);
                    let local =
                        (!std::ptr::eq(local, destination)).then(|| &*floats_mut(local, elements));
                    codec.decode_add(wire, local, target, finish.filter(|_| last));
                }
            }
        }
    }

    /// Does a local step, which with a codec is a copy: schedules with one reduce what they
    /// receive. That of the own piece of an all-gather gets what all others decode.
    pub(super) fn copy_encoded(
        &mut self,
        source: Slot,
        placement: &Placement,
        pool: &mut Pool,
        counters: &Counters,
    ) {
        if placement.bytes == 0 {
            return;
        }
        let tile = self.tile_of(placement.step, placement.tile, source, placement.offset);
        let spreads = self.plan.steps[placement.step as usize].spreads;
        if spreads == 0 {
            let from = self.address(source, placement.offset, placement.tile, pool, counters);
            let Apply::Copy { destination } = placement.apply else {
                unreachable!("no schedule that takes a codec reduces two local chunks")
            };
            let to = self.address(destination, placement.offset, placement.tile, pool, counters);
            // SAFETY: both have the tile's length by the plan. They may be the same memory.
            unsafe { std::ptr::copy(from, to, placement.bytes as usize) };
            return;
        }
        let encoded = self.encode_spreading(tile, spreads, pool, counters);
        self.apply_encoded(placement, encoded.as_ptr(), pool, counters);
        pool.put(encoded);
    }
}

impl Coding {
    /// Encodes values of the result and makes them what all others will decode.
    fn take_over_decoded(&self, tile: Tile, values: &mut [f32], encoded: &mut [u8]) {
        let seed = self.seed_of(tile);
        let Some(error) = self.error_of(tile, values.len()) else {
            self.codec.encode_in_place(values, seed, encoded);
            return;
        };
        error.copy_from_slice(values);
        self.codec.encode_in_place(values, seed, encoded);
        for (error, value) in error.iter_mut().zip(values) {
            *error = (*error - *value) * self.error_weight;
        }
    }
}
