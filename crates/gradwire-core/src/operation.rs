//! One operation in flight: how far each of its steps has come.

use std::sync::Arc;

use gradwire_schedule::{Buffer, Slot, StepIndex};
use rustc_hash::FxHashMap;

use crate::plan::Plan;
use crate::{HoldToken, Time};

/// Most tiles of one step that may be under way at once; the masks below have one bit for each.
pub(crate) const MAX_WINDOW: u32 = 64;

/// Progress of a step. Tiles below `done` are done; the masks count from there.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StepState {
    /// All tiles before this one are done.
    pub done: u32,
    /// Tiles at or after `done` that are done already.
    pub done_mask: u64,
    /// Sends and local steps: the next tile to start.
    pub next: u32,
    /// Receives: tiles that have arrived (landing, held or done).
    pub seen_mask: u64,
    /// Receives: tiles that wait in a hold.
    pub held_mask: u64,
    /// Sends: tiles that the receiver has consumed. Receives: tiles acknowledged to the sender.
    pub acknowledged: u32,
    /// Stands in a queue (a send in its peer's, a local step in the work queue).
    pub queued: bool,
    /// Sends: waits in its peer's list for budget for early data.
    pub starved: bool,
}

impl StepState {
    pub fn is_tile_done(&self, tile: u32) -> bool {
        tile < self.done || bit(self.done_mask, tile - self.done)
    }

    /// Marks a tile done; true if `done` moved.
    fn mark_done(&mut self, tile: u32) -> bool {
        self.done_mask |= 1 << (tile - self.done);
        let moved = self.done_mask.trailing_ones();
        self.done += moved;
        self.done_mask = shift(self.done_mask, moved);
        self.seen_mask = shift(self.seen_mask, moved);
        self.held_mask = shift(self.held_mask, moved);
        moved > 0
    }
}

fn bit(mask: u64, at: u32) -> bool {
    at < 64 && mask & (1 << at) != 0
}

fn shift(mask: u64, by: u32) -> u64 {
    mask.checked_shr(by).unwrap_or(0)
}

/// What is known of one peer in one operation.
#[derive(Clone, Debug)]
pub(crate) struct OperationPeer {
    /// Its world rank ([`crate::plan::ANY_SOURCE`] until an any-source receive is matched).
    pub world: u32,
    /// It has posted the operation too.
    pub joined: bool,
    /// Bytes sent to it before it had joined.
    pub early_bytes: u32,
    /// A request for its Ready has been queued.
    pub requested: bool,
    /// A Ready for it has been queued.
    pub told: bool,
    /// Steps with it that are not complete.
    pub remaining: u32,
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Operation {
    pub plan: Arc<Plan>,
    pub group: u64,
    pub sequence: u64,
    pub tag: u32,
    pub steps: Vec<StepState>,
    pub peers: Vec<OperationPeer>,
    /// Steps that are not complete.
    pub remaining: u32,
    pub held: FxHashMap<(StepIndex, u32), HoldToken>,
    pub submitted: Time,
    pub deadline: Option<Time>,
}

impl Operation {
    /// Whether everything that tile `tile` of `step` waits for has happened.
    pub fn is_tile_runnable(&self, step: StepIndex, tile: u32, window: u32) -> bool {
        let planned = &self.plan.steps[step as usize];
        planned.after.iter().all(|earlier| self.steps[*earlier as usize].is_tile_done(tile))
            && match planned.kind.writes() {
                Some(Slot { buffer: Buffer::Scratch, chunk }) => {
                    self.has_scratch_room(chunk, tile, window)
                }
                _ => true,
            }
    }

    /// Scratch holds `window` tiles of a chunk: a tile has room once all who touch the chunk are
    /// through with the tile whose place it takes.
    fn has_scratch_room(&self, chunk: u32, tile: u32, window: u32) -> bool {
        self.plan.scratch[chunk as usize]
            .touched_by
            .iter()
            .all(|toucher| tile < self.steps[*toucher as usize].done + window)
    }

    /// Marks a tile done; true if the step is complete with it.
    pub fn mark_done(&mut self, step: StepIndex, tile: u32) -> bool {
        let planned = &self.plan.steps[step as usize];
        let moved = self.steps[step as usize].mark_done(tile);
        let complete = moved && self.steps[step as usize].done == planned.tiles;
        if complete {
            self.remaining -= 1;
            if let Some(peer) = self.peers.get_mut(planned.peer) {
                peer.remaining -= 1;
            }
        }
        complete
    }

    /// Whether a receive step may take this tile now: it lies in the window and is new.
    pub fn accepts(&self, step: StepIndex, tile: u32, window: u32) -> bool {
        let state = &self.steps[step as usize];
        tile < self.plan.steps[step as usize].tiles
            && tile >= state.done
            && tile - state.done < window
            && !bit(state.seen_mask, tile - state.done)
    }

    /// The lowest held tile of a receive that is runnable, if any; no longer held afterwards.
    pub fn take_runnable_held(&mut self, step: StepIndex, window: u32) -> Option<(u32, HoldToken)> {
        let state = &self.steps[step as usize];
        let mut mask = state.held_mask;
        while mask != 0 {
            let tile = state.done + mask.trailing_zeros();
            if self.is_tile_runnable(step, tile, window) {
                let bit = tile - state.done;
                self.steps[step as usize].held_mask &= !(1 << bit);
                let token = self.held.remove(&(step, tile)).expect("a held tile has a token");
                return Some((tile, token));
            }
            mask &= mask - 1;
        }
        None
    }

    /// The step that the header's edge names among the sends to (or receives from) a peer.
    pub fn step_of_edge(&self, peer: usize, edge: u32, receive: bool) -> Option<StepIndex> {
        let planned = &self.plan.peers[peer];
        let list = if receive { &planned.receives } else { &planned.sends };
        list.get(edge as usize).copied()
    }

    pub fn peer_index(&self, world: u32) -> Option<usize> {
        self.peers.iter().position(|peer| peer.world == world)
    }

    /// Whether a peer has yet to send something, or to be sent something. What has arrived and
    /// waits for its turn is here.
    pub fn needs(&self, world: u32) -> bool {
        let Some(index) = self.peer_index(world) else { return false };
        let planned = &self.plan.peers[index];
        let expects = |step: &StepIndex| {
            let state = &self.steps[*step as usize];
            state.done + state.seen_mask.count_ones() < self.plan.steps[*step as usize].tiles
        };
        // A tile that a lane has taken may be through long before the lane says so.
        let owes = |step: &StepIndex| {
            self.steps[*step as usize].next < self.plan.steps[*step as usize].tiles
        };
        planned.receives.iter().any(expects) || planned.sends.iter().any(owes)
    }

    /// Peers that have not shown that they posted this operation and are needed for it.
    pub fn not_joined(&self) -> Vec<u32> {
        let waiting = self.peers.iter().filter(|peer| !peer.joined && peer.remaining > 0);
        waiting.map(|peer| peer.world).collect()
    }
}

/// Operations by number. A number is never used twice, so a late event for an operation that has
/// ended finds nothing.
#[derive(Debug, Default)]
pub(crate) struct Operations {
    slots: Vec<(u32, Option<Operation>)>,
    free: Vec<u32>,
}

impl Operations {
    pub fn insert(&mut self, operation: Operation) -> u64 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push((0, None));
            self.slots.len() as u32 - 1
        });
        let slot = &mut self.slots[index as usize];
        slot.0 += 1;
        slot.1 = Some(operation);
        u64::from(slot.0) << 32 | u64::from(index)
    }

    fn slot(&self, id: u64) -> Option<usize> {
        let index = (id & 0xffff_ffff) as usize;
        (self.slots.get(index)?.0 == (id >> 32) as u32).then_some(index)
    }

    pub fn get(&self, id: u64) -> Option<&Operation> {
        self.slots[self.slot(id)?].1.as_ref()
    }

    pub fn get_mut(&mut self, id: u64) -> Option<&mut Operation> {
        let slot = self.slot(id)?;
        self.slots[slot].1.as_mut()
    }

    pub fn remove(&mut self, id: u64) -> Option<Operation> {
        let slot = self.slot(id)?;
        let operation = self.slots[slot].1.take()?;
        self.free.push(slot as u32);
        Some(operation)
    }

    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = (u64, &Operation)> {
        self.slots.iter().enumerate().filter_map(|(index, (generation, operation))| {
            let id = u64::from(*generation) << 32 | index as u64;
            operation.as_ref().map(|operation| (id, operation))
        })
    }
}
