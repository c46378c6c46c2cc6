//! Lanes: frames on their way, in order within a lane, in any order between lanes.

use std::collections::{BTreeMap, VecDeque};

use gradwire_core::{Header, OperationId, Placement};
use gradwire_schedule::Slot;

pub type LaneId = usize;
pub type FrameId = u64;

/// A frame on its way.
#[derive(Debug)]
pub struct Frame {
    pub header: Header,
    /// The memory that its payload is taken from, until it is taken.
    pub source: Option<TileSource>,
    pub payload: Vec<u8>,
}

/// A tile of an operation of the sender's.
#[derive(Clone, Copy, Debug)]
pub struct TileSource {
    pub operation: OperationId,
    pub step: u32,
    pub tile: u32,
    pub slot: Slot,
    pub offset: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaneState {
    Open,
    /// Takes frames and delivers nothing.
    Silent,
    Closed,
}

/// What becomes of the payload that a lane is delivering.
#[derive(Clone, Copy, Debug)]
pub enum Landing {
    Nothing,
    Apply(Placement),
    Hold(u64),
    Abort(u64),
    Goodbye,
}

/// One direction of a connection.
#[derive(Debug)]
pub struct Lane {
    pub from: u32,
    pub to: u32,
    pub state: LaneState,
    pub frames: VecDeque<FrameId>,
    pub landing: Landing,
    /// When the last frame will have arrived.
    pub busy_until: u64,
    /// How much slower it is than others.
    pub slowness: u64,
}

/// All lanes between all ranks.
#[derive(Debug)]
pub struct Wires {
    pub lanes: Vec<Lane>,
    pub frames: BTreeMap<FrameId, Frame>,
    next_frame: FrameId,
    ranks: usize,
    per_pair: usize,
}

impl Wires {
    pub fn new(ranks: usize, per_pair: usize, mut slowness: impl FnMut() -> u64) -> Self {
        let mut lanes = Vec::new();
        for from in 0..ranks as u32 {
            for to in 0..ranks as u32 {
                for _ in 0..per_pair {
                    lanes.push(Lane {
                        from,
                        to,
                        state: LaneState::Open,
                        frames: VecDeque::new(),
                        landing: Landing::Nothing,
                        busy_until: 0,
                        slowness: slowness(),
                    });
                }
            }
        }
        Wires { lanes, frames: BTreeMap::new(), next_frame: 0, ranks, per_pair }
    }

    /// The lanes from one rank to another.
    pub fn between(&self, from: u32, to: u32) -> std::ops::Range<LaneId> {
        let first = (from as usize * self.ranks + to as usize) * self.per_pair;
        first..first + self.per_pair
    }

    pub fn put(&mut self, lane: LaneId, frame: Frame) -> FrameId {
        self.next_frame += 1;
        self.frames.insert(self.next_frame, frame);
        self.lanes[lane].frames.push_back(self.next_frame);
        self.next_frame
    }

    /// A frame has arrived.
    pub fn take(&mut self, lane: LaneId, frame: FrameId) -> Frame {
        let first = self.lanes[lane].frames.pop_front();
        assert_eq!(first, Some(frame), "frames of a lane arrive in order");
        self.frames.remove(&frame).expect("it was on its way")
    }

    /// Ends the lanes between two ranks, with all that is on them.
    pub fn close(&mut self, a: u32, b: u32) {
        for lane in self.between(a, b).chain(self.between(b, a)) {
            self.lanes[lane].state = LaneState::Closed;
            for frame in std::mem::take(&mut self.lanes[lane].frames) {
                self.frames.remove(&frame);
            }
        }
    }

    /// Whether nothing that a rank has sent is still on its way.
    pub fn has_delivered_all_of(&self, from: u32) -> bool {
        self.lanes.iter().filter(|lane| lane.from == from).all(|lane| lane.frames.is_empty())
    }
}
