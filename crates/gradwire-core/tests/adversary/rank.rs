//! A simulated rank: a core, the memory of its operations, and what it has yet to submit.

use std::collections::{BTreeMap, VecDeque};

use gradwire_core::{Apply, Core, HoldToken, OperationId, Placement, Work};
use gradwire_schedule::{Buffer, Slot};

use crate::request::Request;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    Running,
    /// Stands still until then.
    Frozen(u64),
    /// Will never do anything any more.
    Stopped,
}

#[derive(Debug)]
pub struct Rank {
    pub core: Core,
    pub condition: Condition,
    pub running: BTreeMap<OperationId, Running>,
    pub holds: BTreeMap<HoldToken, Vec<u8>>,
    pub threads: Vec<Thread>,
    /// When it looks at what has happened, if that is planned.
    pub wakes_at: Option<u64>,
    /// Lanes on which each peer has said goodbye.
    pub goodbyes: Vec<usize>,
}

/// What a rank does in one group, one after the other.
#[derive(Debug)]
pub struct Thread {
    pub group: usize,
    pub requests: VecDeque<Request>,
    pub in_flight: usize,
    pub starts_at: u64,
    pub next_at: u64,
    pub has_created: bool,
    pub has_removed: bool,
}

impl Thread {
    pub fn is_through(&self) -> bool {
        self.has_created && self.requests.is_empty() && self.in_flight == 0
    }
}

/// An operation in flight.
#[derive(Debug)]
pub struct Running {
    pub thread: usize,
    pub request: Request,
    pub scratch: Vec<Vec<u8>>,
    pub window: u32,
    pub submitted_at: u64,
    pub deadline: u64,
}

impl Running {
    fn range(&self, slot: Slot, offset: u64, tile: u32, bytes: usize) -> std::ops::Range<usize> {
        let start = match slot.buffer {
            Buffer::Scratch => (tile % self.window * self.request.plan.tile_bytes) as usize,
            _ => offset as usize,
        };
        start..start + bytes
    }

    fn chunk(&mut self, slot: Slot) -> &mut Vec<u8> {
        let chunk = slot.chunk as usize;
        match slot.buffer {
            Buffer::Input => &mut self.request.input[chunk],
            Buffer::Output => &mut self.request.output[chunk],
            Buffer::Scratch => {
                let room = self.window * self.request.plan.tile_bytes;
                let scratch = &mut self.scratch[chunk];
                scratch.resize(room as usize, 0x33);
                scratch
            }
        }
    }

    pub fn read(&mut self, slot: Slot, offset: u64, tile: u32, bytes: usize) -> Vec<u8> {
        let range = self.range(slot, offset, tile, bytes);
        self.chunk(slot)[range].to_vec()
    }

    fn write(&mut self, slot: Slot, placement: &Placement, bytes: &[u8]) {
        let range = self.range(slot, placement.offset, placement.tile, bytes.len());
        self.chunk(slot)[range].copy_from_slice(bytes);
    }

    /// A payload begins to arrive straight in the operation's memory: it holds neither what was
    /// there before nor what will be.
    pub fn begin(&mut self, placement: &Placement) {
        if let Apply::Copy { destination } = placement.apply {
            self.write(destination, placement, &vec![0xaa; placement.bytes as usize]);
        }
    }

    pub fn apply(&mut self, placement: &Placement, received: &[u8]) {
        assert_eq!(received.len(), placement.bytes as usize, "a tile of the planned length");
        match placement.apply {
            Apply::Copy { destination } => self.write(destination, placement, received),
            Apply::Reduce { local, destination, .. } => {
                let reduction = self.request.reduction.expect("the operation reduces");
                let bytes = received.len();
                let mut target = self.read(local, placement.offset, placement.tile, bytes);
                reduction.apply(&mut target, received, None);
                self.write(destination, placement, &target);
            }
        }
    }
}

impl Rank {
    pub fn is_through(&self) -> bool {
        self.threads.iter().all(Thread::is_through)
    }

    /// Does one piece of work; false if there is none.
    pub fn work(&mut self) -> bool {
        let Some(work) = self.core.next_work() else { return false };
        match work {
            Work::Local { source, placement } => {
                let running = self.running_of(placement.operation);
                let (offset, tile) = (placement.offset, placement.tile);
                let bytes = running.read(source, offset, tile, placement.bytes as usize);
                running.apply(&placement, &bytes);
                self.core.on_applied(placement.operation, placement.step, placement.tile);
            }
            Work::ApplyHeld { token, placement } => {
                let held = self.holds.remove(&token).expect("a held payload is kept");
                self.running_of(placement.operation).apply(&placement, &held);
                self.core.on_applied(placement.operation, placement.step, placement.tile);
            }
            Work::DropHeld(token) => {
                self.holds.remove(&token).expect("a held payload is kept");
            }
        }
        true
    }

    pub fn running_of(&mut self, operation: OperationId) -> &mut Running {
        self.running.get_mut(&operation).expect("work is for operations in flight")
    }

    /// Most bytes that may lie in holds: a window for each receive in flight, and the budget for
    /// early data of every peer; payloads of ended operations that are still arriving come on top.
    pub fn hold_bound(&self, budget: u32, lanes: usize, tile_bytes: u32) -> usize {
        let windows: u64 = self
            .running
            .values()
            .flat_map(|running| {
                let window = u64::from(running.window * running.request.plan.tile_bytes);
                let steps = running.request.plan.steps.iter();
                steps
                    .filter(|step| step.kind.receives_from().is_some())
                    .map(move |step| step.bytes.min(window))
            })
            .sum();
        let peers = self.goodbyes.len();
        windows as usize + peers * (budget as usize + lanes * tile_bytes as usize)
    }
}
