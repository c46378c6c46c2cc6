//! Frames from a core to a lane, and from a lane to a core.

use gradwire_core::{Arrival, Header, Outgoing, Source, Time};
use rand::Rng;

use crate::network::{Frame, FrameId, Landing, Lane, LaneId, LaneState, TileSource};
use crate::simulation::{Event, Simulation};

impl Simulation {
    /// Hands frames to lanes with room. True if there may be more.
    pub fn pump(&mut self, rank: u32) -> bool {
        let n = self.ranks.len() as u32;
        let first = self.rng.random_range(0..n);
        let mut any = false;
        for peer in (0..n).map(|at| (first + at) % n).filter(|peer| *peer != rank) {
            while self.ranks[rank as usize].core.has_something_to_send(peer) {
                let Some(lane) = self.lane_with_room(rank, peer) else { break };
                // Some lanes take what is urgent only.
                let below = u8::from(self.rng.random_bool(0.2));
                let core = &mut self.ranks[rank as usize].core;
                let frame = core.next_urgent_send(peer, below).or_else(|| core.next_send(peer));
                let Some(frame) = frame else { break };
                self.put_on(lane, frame);
                any = true;
            }
        }
        any
    }

    pub fn lane_with_room(&mut self, from: u32, to: u32) -> Option<LaneId> {
        let lanes = self.wires.between(from, to);
        let turn = self.rng.random_range(0..lanes.len());
        lanes.clone().cycle().skip(turn).take(lanes.len()).find(|lane| {
            let lane = &self.wires.lanes[*lane];
            lane.state != LaneState::Closed && lane.frames.len() < self.scenario.network.capacity
        })
    }

    pub fn put_on(&mut self, lane: LaneId, outgoing: Outgoing) {
        let (payload, source) = match outgoing.source {
            Source::Empty => (vec![], None),
            Source::Bytes(bytes) => (bytes.into_vec(), None),
            Source::Tile { operation, step, tile, slot, offset } => {
                (vec![], Some(TileSource { operation, step, tile, slot, offset }))
            }
        };
        let has_payload = outgoing.header.payload_bytes > 0;
        let (from, to) = (self.wires.lanes[lane].from, self.wires.lanes[lane].to);
        self.trace(|| {
            format!("rank {from} sends {} to {to} on lane {lane}", show(&outgoing.header))
        });
        let frame = self.wires.put(lane, Frame { header: outgoing.header, source, payload });
        let delay = self.scenario.network.delay * self.wires.lanes[lane].slowness;
        let busy_until = self.wires.lanes[lane].busy_until;
        let header_at = busy_until.max(self.now + self.rng.random_range(1..=delay)) + 1;
        let gap = if has_payload { self.rng.random_range(1..=1 + delay / 4) } else { 1 };
        let payload_at = header_at + gap;
        self.wires.lanes[lane].busy_until = payload_at;
        if self.wires.lanes[lane].state == LaneState::Open {
            self.schedule(header_at, Event::Header(lane, frame));
            self.schedule(payload_at, Event::Payload(lane, frame));
        }
        if let Some(tile) = source {
            self.unsent.insert(frame, tile);
            match self.rng.random_range(0..5) {
                0 | 1 => self.sent(lane, frame),
                2 | 3 => {
                    let at = self.rng.random_range(self.now + 1..=payload_at);
                    self.schedule(at, Event::Sent(lane, frame));
                }
                _ => self.schedule(payload_at + delay, Event::Sent(lane, frame)),
            }
        }
    }

    /// A lane says that a tile's memory is free again.
    pub fn sent(&mut self, lane: LaneId, frame: FrameId) {
        self.take_payload(lane, frame);
        let Some(tile) = self.unsent.remove(&frame) else { return };
        let Lane { from, state, .. } = self.wires.lanes[lane];
        if state != LaneState::Closed {
            self.ranks[from as usize].core.on_sent(tile.operation, tile.step, tile.tile);
            self.wake_soon(from);
        }
    }

    /// Reads a frame's payload out of its operation's memory, unless that has been done.
    pub fn take_payload(&mut self, lane: LaneId, frame: FrameId) {
        let from = self.wires.lanes[lane].from as usize;
        let Some(frame) = self.wires.frames.get_mut(&frame) else { return };
        let Some(tile) = frame.source.take() else { return };
        let running = self.ranks[from].running_of(tile.operation);
        let bytes = frame.header.payload_bytes as usize;
        frame.payload = running.read(tile.slot, tile.offset, tile.tile, bytes);
    }

    pub fn header_arrives(&mut self, lane: LaneId, frame: FrameId) {
        let Lane { from, to, .. } = self.wires.lanes[lane];
        let bytes = self.wires.frames[&frame].header.encode();
        let header = Header::decode(&bytes).expect("what a core sends can be read");
        let now = Time(self.now);
        let arrival = self.ranks[to as usize].core.on_frame(now, from, &header);
        self.trace(|| format!("rank {to} gets {} from {from}: {arrival:?}", show(&header)));
        let arrival = match arrival {
            Ok(arrival) => arrival,
            Err(violation) => {
                let gone = self.ranks[to as usize].core.is_gone(from);
                assert!(gone, "rank {to} says that {from} broke the protocol: {violation}");
                self.hang_up(to, from);
                return;
            }
        };
        let me = &mut self.ranks[to as usize];
        self.wires.lanes[lane].landing = match arrival {
            Arrival::Control | Arrival::Discard => Landing::Nothing,
            Arrival::Apply(placement) => {
                me.running_of(placement.operation).begin(&placement);
                Landing::Apply(placement)
            }
            Arrival::Hold(token) => {
                let old = me.holds.insert(token, vec![0xee; header.payload_bytes as usize]);
                assert!(old.is_none(), "a hold's token is new");
                Landing::Hold(token)
            }
            Arrival::Abort { group } => Landing::Abort(group),
            Arrival::Goodbye => Landing::Goodbye,
        };
        self.wake_soon(to);
    }

    pub fn payload_arrives(&mut self, lane: LaneId, frame: FrameId) {
        self.take_payload(lane, frame);
        let frame = self.wires.take(lane, frame);
        let landing = std::mem::replace(&mut self.wires.lanes[lane].landing, Landing::Nothing);
        let Lane { from, to, .. } = self.wires.lanes[lane];
        let now = Time(self.now);
        let me = &mut self.ranks[to as usize];
        match landing {
            Landing::Nothing => {}
            Landing::Apply(placement) => {
                if let Some(running) = me.running.get_mut(&placement.operation) {
                    running.apply(&placement, &frame.payload);
                    me.core.on_applied(placement.operation, placement.step, placement.tile);
                }
            }
            Landing::Hold(token) => {
                me.holds.insert(token, frame.payload).expect("it was made with the header");
                me.core.on_held(token);
            }
            Landing::Abort(group) => {
                me.core.on_abort(now, group, &frame.payload).expect("an honest abort");
            }
            Landing::Goodbye => {
                me.goodbyes[from as usize] += 1;
                if me.goodbyes[from as usize] == self.scenario.network.lanes {
                    me.core.on_peer_departed(now, from);
                }
            }
        }
        self.wake_soon(from);
        self.wake_soon(to);
    }
}

fn show(header: &Header) -> String {
    format!(
        "{:?}(group {:#x}, #{}, tag {}, edge {}, tile {}, {} B, early {}, credit {})",
        header.kind,
        header.group,
        header.sequence,
        header.tag,
        header.edge,
        header.tile,
        header.payload_bytes,
        header.early,
        header.credit
    )
}
