//! What is known of another rank: what waits to be sent to it, and whether it lives.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use gradwire_schedule::StepIndex;

use crate::failure::Failure;
use crate::{FrameKind, Header, Time};

/// A frame without tensor data that waits to be sent.
#[derive(Debug)]
pub(crate) enum Control {
    /// Complete as it stands.
    Plain(Header),
    /// An acknowledgement; the count is filled in when it leaves.
    Acknowledge { operation: u64, step: StepIndex },
    /// A group has failed.
    Abort { group: u64, failure: std::sync::Arc<Failure> },
}

/// Whether a peer can be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Liveness {
    /// As far as is known.
    Alive,
    /// It said goodbye.
    Departed,
    /// It is gone; the text says why.
    Lost(String),
}

/// An operation's place among those that wait to be sent: the more urgent first, then the older.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Order {
    pub priority: u8,
    /// Grows with each operation.
    pub number: u64,
}

/// Every so many tiles the oldest operation has its turn whatever its priority, so that nothing
/// starves.
const TURN_OF_THE_OLDEST: u32 = 8;

#[derive(Debug)]
pub(crate) struct Peer {
    /// How messages call it: `rank 3 on host2 (10.0.0.3)`.
    pub label: String,
    pub liveness: Liveness,
    pub control: VecDeque<Control>,
    /// A Pong, and a Credit, stand in `control`: a peer that asks and asks but never reads gets no
    /// more than one.
    pub pong_queued: bool,
    pub credit_queued: bool,
    /// Send steps with a tile that may go, by operation; those of one operation take turns.
    pub runnable: BTreeMap<Order, VecDeque<(u64, StepIndex)>>,
    /// Tiles that were picked so far, modulo 2^32.
    pub picks: u32,
    /// Early bytes sent to it, and those it has said it consumed (both modulo 2^32).
    pub early_sent: u32,
    pub early_credited: u32,
    /// Early bytes of its that were consumed here, and what it was last told of them.
    pub consumed: u32,
    pub advertised: u32,
    /// Frames about operations that are not posted here, held for it.
    pub early_frames: u32,
    /// Bytes of their payloads.
    pub early_held: u32,
    /// Send steps that found its budget for early data exhausted.
    pub starved: Vec<(u64, StepIndex)>,
    pub last_heard: Time,
    pub last_ping: Time,
    /// Operations in flight that expect something of it.
    pub interest: u32,
    /// Since when something is expected of it.
    pub watched_since: Option<Time>,
}

impl Peer {
    pub fn new(rank: u32) -> Self {
        Peer {
            label: format!("rank {rank}"),
            liveness: Liveness::Alive,
            control: VecDeque::new(),
            pong_queued: false,
            credit_queued: false,
            runnable: BTreeMap::new(),
            picks: 0,
            early_sent: 0,
            early_credited: 0,
            consumed: 0,
            advertised: 0,
            early_frames: 0,
            early_held: 0,
            starved: Vec::new(),
            last_heard: Time::ZERO,
            last_ping: Time::ZERO,
            interest: 0,
            watched_since: None,
        }
    }

    pub fn queue_pong(&mut self) {
        if !std::mem::replace(&mut self.pong_queued, true) {
            self.control.push_back(Control::Plain(Header::new(FrameKind::Pong)));
        }
    }

    pub fn queue_credit(&mut self) {
        if !std::mem::replace(&mut self.credit_queued, true) {
            self.control.push_back(Control::Plain(Header::new(FrameKind::Credit)));
        }
    }

    /// A plain control frame is no longer queued.
    pub fn has_left(&mut self, kind: FrameKind) {
        match kind {
            FrameKind::Pong => self.pong_queued = false,
            FrameKind::Credit => self.credit_queued = false,
            _ => {}
        }
    }

    /// Forgets an operation that has ended.
    pub fn forget(&mut self, operation: u64, order: Order) {
        self.runnable.remove(&order);
        self.starved.retain(|(starved, _)| *starved != operation);
    }

    /// Takes the send step whose tile goes next out of the queue.
    pub fn pick(&mut self) -> Option<(u64, StepIndex)> {
        let (&first, &last) = (self.runnable.keys().next()?, self.runnable.keys().next_back()?);
        let mut order = first;
        if first.priority != last.priority {
            self.picks = self.picks.wrapping_add(1);
            if self.picks.is_multiple_of(TURN_OF_THE_OLDEST) {
                order = *self.runnable.keys().min_by_key(|order| order.number)?;
            }
        }
        self.take(order)
    }

    /// Takes the most urgent send step out of the queue if its priority is below `priority`.
    pub fn pick_below(&mut self, priority: u8) -> Option<(u64, StepIndex)> {
        let first = *self.runnable.keys().next()?;
        if first.priority < priority { self.take(first) } else { None }
    }

    fn take(&mut self, order: Order) -> Option<(u64, StepIndex)> {
        let steps = self.runnable.get_mut(&order)?;
        let picked = steps.pop_front();
        if steps.is_empty() {
            self.runnable.remove(&order);
        }
        picked
    }

    pub fn early_in_flight(&self) -> u32 {
        self.early_sent.wrapping_sub(self.early_credited)
    }

    /// Takes over a credit from a header; true if it moved. Frames of several lanes overtake each
    /// other, so an older figure may come later.
    pub fn take_credit(&mut self, credit: u32) -> bool {
        let step = credit.wrapping_sub(self.early_credited);
        let moved = step != 0 && step <= self.early_in_flight();
        if moved {
            self.early_credited = credit;
        }
        moved
    }

    /// How long it has been silent while something was expected of it.
    pub fn silent_for(&self, now: Time) -> Option<Duration> {
        Some(now.since(self.watched_since?.max(self.last_heard)))
    }

    pub fn has_something_to_send(&self) -> bool {
        !self.control.is_empty() || !self.runnable.is_empty()
    }
}
