//! Operations in flight as memory: where their slots lie, and what is done to them.

use std::sync::Arc;

use gradwire_core::{Apply, Placement, Plan, Work};
use gradwire_reduce::Reduction;
use gradwire_schedule::{Buffer, Slot};

use super::coding::Coding;
use super::pool::Pool;
use super::timeline::record_applied;
use super::{Driver, Start};
use crate::counters::{Counters, add, lower, raise};
use crate::memory::Memory;
use crate::trace::{OperationTrace, Work as Traced};
use crate::wait::{OperationState, Outcome};

/// An operation in flight.
#[derive(Debug)]
pub(crate) struct Running {
    pub(super) group: u64,
    pub(super) plan: Arc<Plan>,
    /// World ranks of its peers.
    pub peers: Vec<u32>,
    input: Vec<Memory>,
    output: Vec<Memory>,
    /// Room for `window` tiles of each scratch chunk, from its first use on.
    scratch: Vec<Option<Box<[u8]>>>,
    window: u32,
    reduction: Option<Reduction>,
    pub(super) finish: Option<u32>,
    pub(super) coding: Option<Coding>,
    pub(super) trace: Option<Box<OperationTrace>>,
    state: Arc<OperationState>,
}

impl Running {
    pub fn new(start: Start, window: u32, state: Arc<OperationState>) -> Self {
        let coding = start
            .plan
            .descriptor
            .codec
            .map(|codec| Coding::new(codec, start.error, start.seed, start.finish));
        Running {
            group: start.group,
            coding,
            scratch: start.plan.scratch.iter().map(|_| None).collect(),
            plan: start.plan,
            peers: start.peers,
            input: start.input,
            output: start.output,
            window,
            reduction: start.reduction,
            finish: start.finish,
            trace: None,
            state,
        }
    }

    /// The first byte of a tile of a slot.
    pub fn address(
        &mut self,
        slot: Slot,
        offset: u64,
        tile: u32,
        pool: &mut Pool,
        counters: &Counters,
    ) -> *mut u8 {
        let chunk = slot.chunk as usize;
        match slot.buffer {
            Buffer::Input => self.input[chunk].pointer.wrapping_add(offset as usize),
            Buffer::Output => self.output[chunk].pointer.wrapping_add(offset as usize),
            Buffer::Scratch => {
                let tile_bytes = self.plan.tile_bytes as usize;
                let window = self.window;
                let block = self.scratch[chunk].get_or_insert_with(|| {
                    let room = window as usize * tile_bytes;
                    let bytes = room.min(self.plan.scratch[chunk].bytes as usize);
                    let gauges = (&counters.bytes_scratch, &counters.bytes_scratch_peak);
                    raise(gauges.0, gauges.1, bytes as u64);
                    pool.take(bytes)
                });
                block.as_mut_ptr().wrapping_add((tile % window) as usize * tile_bytes)
            }
        }
    }

    /// Applies a tile whose bytes start at `received`.
    pub fn apply(
        &mut self,
        placement: &Placement,
        received: *const u8,
        pool: &mut Pool,
        counters: &Counters,
    ) {
        let bytes = placement.bytes as usize;
        if bytes == 0 {
            return;
        }
        if self.is_encoded(placement.step) {
            self.apply_encoded(placement, received, pool, counters);
            return;
        }
        let mut at =
            |slot: Slot| self.address(slot, placement.offset, placement.tile, pool, counters);
        match placement.apply {
            Apply::Copy { destination } => {
                let destination = at(destination);
                // SAFETY: both ranges have `bytes` bytes: the destination by the plan, which was
                // made from the lengths of the caller's memory, the source by the header, which
                // the core has compared with the plan. They may be the same memory.
                unsafe { std::ptr::copy(received, destination, bytes) };
            }
            Apply::Reduce { local, destination, last } => {
                let (local, destination) = (at(local), at(destination));
                let finish = self.finish.filter(|_| last);
                let reduction = self.reduction.expect("a plan that reduces comes with its kernel");
                // SAFETY: as above; the memory is the operation's alone while it is in flight (the
                // promise of `Communicator::submit`), and the received bytes lie in a lane's or
                // the driver's memory or in another chunk.
                unsafe {
                    let received = std::slice::from_raw_parts(received, bytes);
                    let target = std::slice::from_raw_parts_mut(destination, bytes);
                    if std::ptr::eq(local, destination) {
                        reduction.apply(target, received, finish);
                    } else {
                        let local = std::slice::from_raw_parts(local, bytes);
                        reduction.apply_into(target, local, received, finish);
                    }
                }
            }
        }
    }

    /// Notes bytes that had been received before.
    fn has_received(&mut self, bytes: usize) {
        if let Some(trace) = &mut self.trace {
            trace.received += bytes as u64;
        }
    }

    /// What applying a tile is.
    pub fn work_of(&self, placement: &Placement) -> Traced {
        match placement.apply {
            _ if self.is_encoded(placement.step) => Traced::Decode,
            Apply::Copy { .. } => Traced::Copy,
            Apply::Reduce { .. } => Traced::Reduce,
        }
    }

    /// Gives back what it holds and tells its handle.
    pub fn end(self, pool: &mut Pool, counters: &Counters, outcome: Outcome) {
        for block in self.scratch.into_iter().flatten() {
            lower(&counters.bytes_scratch, block.len() as u64);
            pool.put(block);
        }
        self.state.finish(outcome);
    }
}

impl Driver {
    /// Does what can be done with the bytes that are here. True if there was anything.
    pub(super) fn work(&mut self) -> bool {
        let mut any = false;
        while let Some(work) = self.core.next_work() {
            any = true;
            let start = self.recorder.begin();
            match work {
                Work::Local { source, placement } => {
                    let running =
                        self.operations.get_mut(&placement.operation).expect("it is in flight");
                    let (offset, tile) = (placement.offset, placement.tile);
                    if running.coding.is_some() {
                        running.copy_encoded(source, &placement, &mut self.pool, &self.counters);
                    } else {
                        let from =
                            running.address(source, offset, tile, &mut self.pool, &self.counters);
                        running.apply(&placement, from, &mut self.pool, &self.counters);
                    }
                    if let Some(start) = start {
                        record_applied(&self.recorder, running, &placement, start);
                    }
                    self.core.on_applied(placement.operation, placement.step, placement.tile);
                }
                Work::ApplyHeld { token, placement } => {
                    let held = self.holds.remove(&token).expect("a held tile is kept");
                    let running =
                        self.operations.get_mut(&placement.operation).expect("it is in flight");
                    running.apply(&placement, held.as_ptr(), &mut self.pool, &self.counters);
                    if let Some(start) = start {
                        running.has_received(held.len());
                        record_applied(&self.recorder, running, &placement, start);
                    }
                    self.core.on_applied(placement.operation, placement.step, placement.tile);
                    self.release(held);
                }
                Work::DropHeld(token) => {
                    let held = self.holds.remove(&token).expect("a held tile is kept");
                    self.release(held);
                }
            }
        }
        any
    }

    fn release(&mut self, held: Box<[u8]>) {
        lower(&self.counters.bytes_held, held.len() as u64);
        self.pool.put(held);
    }
}

/// Notes a tile that has to wait and makes room for it.
pub(super) fn hold(bytes: usize, pool: &mut Pool, counters: &Counters) -> Box<[u8]> {
    add(&counters.tiles_held, 1);
    raise(&counters.bytes_held, &counters.bytes_held_peak, bytes as u64);
    pool.take(bytes)
}
