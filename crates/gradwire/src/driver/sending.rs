//! What goes onto the lanes: which lane takes which tile, and what comes back once it is sent.

use gradwire_core::{Outgoing, Source};
use gradwire_transport::{Frame, Payload, Wire};

use super::pool::Pool;
use super::timeline::record_work;
use super::{Asking, Driver, InFlight, NO_TOKEN};
use crate::communicator::Request;
use crate::counters::add;
use crate::trace::Work;

/// Lanes are used for what is not urgent as long as each has so much of the limit of bytes in
/// flight: segments of less cost the kernel as much for fewer bytes.
const SMALLEST_SHARE: usize = 64 << 10;

impl Driver {
    /// Limits what is on its way to each peer.
    pub fn limit_in_flight(&mut self, bytes: Option<usize>) {
        self.in_flight_bytes = bytes;
        for index in 0..self.connected.len() {
            self.share_limit(self.connected[index]);
        }
    }

    /// How many of a peer's lanes, counted from the first, carry whatever there is. The others are
    /// kept free for urgent operations: a limit that leaves little for each lane is not worth
    /// dividing, but each interface has its lane.
    fn common_lanes(&self, peer: u32) -> usize {
        let count = self.peers[peer as usize].keys.len();
        self.in_flight_bytes
            .map_or(count, |bytes| (bytes / SMALLEST_SHARE).max(self.interfaces).min(count))
    }

    /// Divides the limit between a peer's lanes.
    pub(super) fn share_limit(&mut self, peer: u32) {
        let lanes = self.common_lanes(peer).max(1);
        let share = self.in_flight_bytes.map(|bytes| bytes / lanes);
        for key in &self.peers[peer as usize].keys {
            let entry = self.lanes[*key].as_mut().expect("a peer's lanes exist");
            if let Err(error) = entry.lane.limit_in_flight(share) {
                tracing::warn!(peer, %error, "what is in flight can't be limited");
            }
        }
    }

    /// Hands frames to lanes that have room, and pushes on what they hold.
    pub(super) fn send(&mut self) -> bool {
        let mut moved = false;
        for index in 0..self.connected.len() {
            moved |= self.send_to(self.connected[index]);
        }
        moved
    }

    fn send_to(&mut self, peer: u32) -> bool {
        let mut moved = false;
        loop {
            let handed = self.hand_over(peer);
            for index in 0..self.peers[peer as usize].keys.len() {
                let key = self.peers[peer as usize].keys[index];
                moved |= self.flush(key);
            }
            moved |= handed;
            if !handed {
                return moved;
            }
        }
    }

    /// Fills the lanes of a peer in turns, a frame at a time, so that a slow one gets no more than
    /// it takes. True if there may be more for lanes that have room again after a flush.
    fn hand_over(&mut self, peer: u32) -> bool {
        let common = self.common_lanes(peer);
        let mut any = self.hand_over_urgent(peer, common);
        while self.core.has_something_to_send(peer) {
            let turn = self.peers[peer as usize].turn;
            let free =
                (0..common).map(|at| (turn + at) % common).find(|at| self.is_free(peer, *at));
            let Some(at) = free else { return any };
            let key = self.peers[peer as usize].keys[at];
            let Some(outgoing) = self.core.next_send(peer) else { return any };
            self.peers[peer as usize].turn = at + 1;
            self.hand_to(key, outgoing);
            any = true;
        }
        any
    }

    /// Hands what is urgent to the lanes behind the common ones.
    fn hand_over_urgent(&mut self, peer: u32, common: usize) -> bool {
        let mut any = false;
        let count = self.peers[peer as usize].keys.len();
        while let Some(at) = (common..count).find(|at| self.is_free(peer, *at)) {
            let urgent = self.core.next_urgent_send(peer, Request::COLLECTIVE_PRIORITY);
            let Some(outgoing) = urgent else { break };
            self.hand_to(self.peers[peer as usize].keys[at], outgoing);
            any = true;
        }
        any
    }

    /// Whether a lane of a peer takes a frame.
    fn is_free(&self, peer: u32, at: usize) -> bool {
        let key = self.peers[peer as usize].keys[at];
        let entry = self.lanes[key].as_ref().expect("a peer's lanes exist");
        entry.failure.is_none() && entry.lane.ready_to_send()
    }

    fn hand_to(&mut self, key: usize, outgoing: Outgoing) {
        let header = outgoing.header.encode();
        let frame = match outgoing.source {
            Source::Empty => {
                Frame { header, payload: Payload::Empty, operation: 0, token: NO_TOKEN }
            }
            Source::Bytes(bytes) => {
                Frame { header, payload: Payload::Owned(bytes), operation: 0, token: NO_TOKEN }
            }
            Source::Tile { operation, step, tile, slot, offset } => {
                let start = self.recorder.begin();
                let running =
                    self.operations.get_mut(&operation).expect("an operation in flight is known");
                let bytes = outgoing.header.payload_bytes as usize;
                add(&self.counters.bytes_sent, bytes as u64);
                let payload = if bytes == 0 {
                    Payload::Empty
                } else if running.is_encoded(step) {
                    let place = running.tile_of(step, tile, slot, offset);
                    let encoded = running.encode(place, &mut self.pool, &self.counters);
                    if let Some(start) = start {
                        let tile = (tile, bytes as u32);
                        record_work(&self.recorder, running, Work::Encode, tile, start);
                    }
                    Payload::Owned(encoded)
                } else {
                    let pointer =
                        running.address(slot, offset, tile, &mut self.pool, &self.counters);
                    Payload::Borrowed { pointer, bytes }
                };
                let peer = self.lanes[key].as_ref().map_or(0, |entry| entry.peer);
                self.peers[peer as usize].sent += bytes as u64;
                let handed = self.record_handed(operation);
                let token = self.remember(InFlight { operation, step, tile, lane: key, handed });
                Frame { header, payload, operation, token }
            }
        };
        add(&self.counters.frames_sent, 1);
        let entry = self.lanes[key].as_mut().expect("the lane was just found");
        if let Err(error) = entry.lane.send(frame, &mut taken_back(&mut self.sent, &mut self.pool))
        {
            entry.failure = Some(error);
        }
        self.report_sent();
    }

    fn flush(&mut self, key: usize) -> bool {
        let entry = self.lanes[key].as_mut().expect("a peer's lanes exist");
        let waits = self.asking == Asking::Ready && entry.is_full;
        if waits || entry.failure.is_some() || !entry.lane.has_unsent() {
            return false;
        }
        let moved = entry
            .lane
            .flush(&mut taken_back(&mut self.sent, &mut self.pool))
            .unwrap_or_else(|error| {
                entry.failure = Some(error);
                false
            });
        entry.is_full = entry.lane.wire() == Wire::Tcp && entry.lane.has_unsent();
        self.report_sent();
        moved
    }

    fn remember(&mut self, in_flight: InFlight) -> u64 {
        let token = self.free.pop().unwrap_or_else(|| {
            self.in_flight.push(None);
            self.in_flight.len() as u64 - 1
        });
        self.in_flight[token as usize] = Some(in_flight);
        token
    }

    pub(super) fn report_sent(&mut self) {
        while let Some(token) = self.sent.pop() {
            self.free.push(token);
            if let Some(sent) = self.in_flight[token as usize].take() {
                if let Some(handed) = sent.handed {
                    self.record_sent(&sent, handed);
                }
                self.core.on_sent(sent.operation, sent.step, sent.tile);
            }
        }
    }
}

/// Notes the tokens of tiles that have been sent, and keeps the buffers that they were encoded in.
fn taken_back<'a>(
    sent: &'a mut Vec<u64>,
    pool: &'a mut Pool,
) -> impl FnMut(u64, Payload) + use<'a> {
    |token, payload| {
        if token == NO_TOKEN {
            return;
        }
        sent.push(token);
        if let Payload::Owned(buffer) = payload {
            pool.put(buffer);
        }
    }
}
