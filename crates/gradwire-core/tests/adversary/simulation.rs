//! The event loop: modelled time, ranks that react when they please, frames on their way.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::hash::Hasher;

use gradwire_core::{
    Arrival, Config, Core, FrameKind, Header, Outgoing, Source, Submission, SubmitError, Time,
};
use gradwire_reduce::{DataType, ReduceOp};
use gradwire_schedule::{Algorithm, Collective};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rustc_hash::FxHasher;

use crate::judge::Judge;
use crate::network::{Frame, FrameId, Landing, Lane, LaneId, LaneState, TileSource, Wires};
use crate::rank::{Condition, Rank, Running, Thread};
use crate::request::{ItemId, requests};
use crate::scenario::{Call, Fault, GroupPlan, Item, MILLISECOND, SECOND, Scenario};

/// No run needs as many events; one that does is going around in circles.
const MAX_EVENTS: u64 = 4_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Wake(u32),
    Header(LaneId, FrameId),
    Payload(LaneId, FrameId),
    Sent(LaneId, FrameId),
    /// A rank notices that its connections to a peer have ended.
    Notice {
        rank: u32,
        peer: u32,
    },
    Fault,
}

pub struct Simulation {
    pub scenario: Scenario,
    pub now: u64,
    pub ranks: Vec<Rank>,
    pub wires: Wires,
    judge: Judge,
    rng: StdRng,
    queue: BinaryHeap<Reverse<(u64, u64, Event)>>,
    next_number: u64,
    /// Tiles whose lane has yet to report them sent.
    unsent: std::collections::BTreeMap<FrameId, TileSource>,
    tracing: bool,
    hash: FxHasher,
    events: u64,
    survivors_meet: bool,
}

impl Simulation {
    pub fn new(scenario: Scenario, tracing: bool) -> Self {
        let mut rng = StdRng::seed_from_u64(!scenario.seed);
        let n = scenario.config.world_size;
        let wires = Wires::new(n as usize, scenario.network.lanes, || {
            if rng.random_bool(0.1) { 10 } else { 1 }
        });
        let ranks = (0..n).map(|rank| new_rank(&scenario, rank, &mut rng)).collect();
        let mut simulation = Simulation {
            judge: Judge::new(&scenario),
            now: 0,
            ranks,
            wires,
            rng,
            queue: BinaryHeap::new(),
            next_number: 0,
            unsent: Default::default(),
            tracing,
            hash: FxHasher::default(),
            events: 0,
            survivors_meet: false,
            scenario,
        };
        if tracing {
            println!("{:#?}", simulation.scenario);
        }
        for rank in 0..n {
            simulation.wake_soon(rank);
        }
        if let Some(at) = fault_time(&simulation.scenario.fault) {
            simulation.schedule(at, Event::Fault);
        }
        simulation
    }

    /// Runs to the end. Panics if anything is not as it should be; returns a digest of all that
    /// happened.
    pub fn run(mut self) -> u64 {
        while let Some(Reverse((time, _, event))) = self.queue.pop() {
            self.events += 1;
            assert!(self.events < MAX_EVENTS, "the run does not come to an end");
            self.now = time;
            self.note(event);
            self.handle(event);
            if !self.survivors_meet && self.are_through() {
                self.survivors_meet = true;
                self.let_survivors_meet();
            }
        }
        assert!(self.are_through(), "ranks wait for ever: {}", self.stragglers());
        assert!(self.survivors_meet, "the survivors meet");
        self.judge.check_end(&self.scenario, &self.ranks, &self.wires);
        self.hash.finish()
    }

    fn note(&mut self, event: Event) {
        self.hash.write_u64(self.now);
        match event {
            Event::Wake(rank) => self.hash.write_u32(rank),
            Event::Header(lane, frame) => {
                self.hash.write_usize(lane);
                if let Some(frame) = self.wires.frames.get(&frame) {
                    self.hash.write(&frame.header.encode());
                }
            }
            Event::Payload(lane, frame) | Event::Sent(lane, frame) => {
                self.hash.write_usize(lane);
                self.hash.write_u64(frame);
            }
            Event::Notice { rank, peer } => self.hash.write_u32(rank << 16 | peer),
            Event::Fault => self.hash.write_u8(1),
        }
    }

    fn trace(&self, text: impl FnOnce() -> String) {
        if self.tracing {
            println!("{:>14.6} ms  {}", self.now as f64 / 1e6, text());
        }
    }

    fn schedule(&mut self, at: u64, event: Event) {
        self.next_number += 1;
        self.queue.push(Reverse((at, self.next_number, event)));
    }

    fn wake_at(&mut self, rank: u32, at: u64) {
        let planned = &mut self.ranks[rank as usize].wakes_at;
        if planned.is_none_or(|planned| planned > at) {
            *planned = Some(at);
            self.schedule(at, Event::Wake(rank));
        }
    }

    fn wake_soon(&mut self, rank: u32) {
        let reaction = self.rng.random_range(1..=1 + self.scenario.network.reaction);
        self.wake_at(rank, self.now + reaction);
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Wake(rank) => {
                if self.ranks[rank as usize].wakes_at == Some(self.now) {
                    self.ranks[rank as usize].wakes_at = None;
                    self.when_awake(rank, event, |it| it.wake(rank));
                }
            }
            Event::Header(lane, frame) if self.arrives(lane, frame) => {
                let to = self.wires.lanes[lane].to;
                self.when_awake(to, event, |it| it.header_arrives(lane, frame));
            }
            Event::Payload(lane, frame) if self.arrives(lane, frame) => {
                let to = self.wires.lanes[lane].to;
                self.when_awake(to, event, |it| it.payload_arrives(lane, frame));
            }
            Event::Header(..) | Event::Payload(..) => {}
            Event::Sent(lane, frame) => {
                let from = self.wires.lanes[lane].from;
                self.when_awake(from, event, |it| it.sent(lane, frame));
            }
            Event::Notice { rank, peer } => {
                self.when_awake(rank, event, |it| it.notice(rank, peer));
            }
            Event::Fault => self.strike(),
        }
    }

    /// Whether a frame is still going to arrive.
    fn arrives(&self, lane: LaneId, frame: FrameId) -> bool {
        self.wires.lanes[lane].state == LaneState::Open && self.wires.frames.contains_key(&frame)
    }

    /// Handles an event unless the rank stands still; then later, or never.
    fn when_awake(&mut self, rank: u32, event: Event, handle: impl FnOnce(&mut Self)) {
        match self.ranks[rank as usize].condition {
            Condition::Running => handle(self),
            Condition::Frozen(until) if until <= self.now => {
                self.trace(|| format!("rank {rank} thaws"));
                self.ranks[rank as usize].condition = Condition::Running;
                handle(self);
            }
            Condition::Frozen(u64::MAX) => {}
            Condition::Frozen(until) => {
                if event == Event::Wake(rank) {
                    self.wake_at(rank, until);
                } else {
                    self.schedule(until, event);
                }
            }
            // Who has left in good order still empties its lanes.
            Condition::Stopped => {
                if let Event::Payload(lane, frame) = event {
                    self.wires.take(lane, frame);
                    self.wake_soon(self.wires.lanes[lane].from);
                }
            }
        }
    }

    fn wake(&mut self, rank: u32) {
        let now = Time(self.now);
        let me = &mut self.ranks[rank as usize];
        if me.core.next_tick().is_some_and(|tick| tick <= now) {
            me.core.on_tick(now);
        }
        while let Some(peer) = self.ranks[rank as usize].core.next_given_up() {
            self.trace(|| format!("rank {rank} gives up {peer}"));
            self.hang_up(rank, peer);
            self.drop_landings(rank, peer);
        }
        let wanted = self.rng.random_range(1..=16);
        let me = &mut self.ranks[rank as usize];
        let drained = (0..wanted).any(|_| !me.work());
        let submitted = self.submit(rank);
        let sent = self.pump(rank);
        let finished = self.finish(rank);
        self.check_bounds(rank, drained);
        self.leave_if_through(rank);
        if !drained || submitted || sent || finished {
            self.wake_soon(rank);
        }
        let me = &self.ranks[rank as usize];
        let tick = me.core.next_tick().map(|tick| tick.0.max(self.now + 1));
        let starts = me.threads.iter().filter(|thread| !thread.is_through()).filter_map(|thread| {
            let at = if thread.has_created { thread.next_at } else { thread.starts_at };
            (at > self.now).then_some(at)
        });
        if let Some(at) = starts.chain(tick).min() {
            self.wake_at(rank, at);
        }
    }

    fn submit(&mut self, rank: u32) -> bool {
        let mut any = false;
        for thread in 0..self.ranks[rank as usize].threads.len() {
            any |= self.submit_of(rank, thread);
        }
        any
    }

    fn submit_of(&mut self, rank: u32, number: usize) -> bool {
        let me = &mut self.ranks[rank as usize];
        let thread = &mut me.threads[number];
        if self.now < thread.starts_at {
            return false;
        }
        let group = &self.scenario.groups[thread.group];
        if !thread.has_created {
            me.core.create_group(group.id, &group.name, &group.members);
            thread.has_created = true;
        }
        let mut any = false;
        while self.now >= thread.next_at && thread.in_flight < self.scenario.depth {
            let Some(request) = thread.requests.front() else { break };
            let deadline = self.now + self.scenario.timeout;
            let submission = Submission {
                group: group.id,
                plan: request.plan.clone(),
                tag: request.tag,
                deadline: Some(Time(deadline)),
            };
            match me.core.submit(Time(self.now), submission) {
                Ok(id) => {
                    let request = thread.requests.pop_front().expect("there is one");
                    thread.in_flight += 1;
                    if self.tracing {
                        let what = request.plan.descriptor;
                        println!(
                            "{:>14.6} ms  rank {rank} submits {what} as {id:#x} in group {} item {}",
                            self.now as f64 / 1e6,
                            request.id.group,
                            request.id.item
                        );
                    }
                    self.judge.submitted(request.id, rank, self.now);
                    let running = Running {
                        thread: number,
                        scratch: vec![vec![]; request.plan.scratch.len()],
                        request,
                        window: self.scenario.config.window_tiles,
                        submitted_at: self.now,
                        deadline,
                    };
                    me.running.insert(id, running);
                    any = true;
                }
                Err(SubmitError::Full(_)) => break,
                Err(SubmitError::Failed { failure, .. }) => {
                    self.judge.check_failure(
                        &self.scenario,
                        rank,
                        thread.group,
                        &failure,
                        self.now,
                        self.now,
                    );
                    thread.requests.clear();
                    any = true;
                }
                Err(error @ SubmitError::NoGroup(_)) => panic!("{error}"),
            }
            if self.scenario.pace > 0 {
                thread.next_at = self.now + self.rng.random_range(0..=self.scenario.pace);
            }
        }
        any
    }

    /// Hands frames to lanes with room. True if there may be more.
    fn pump(&mut self, rank: u32) -> bool {
        let n = self.ranks.len() as u32;
        let first = self.rng.random_range(0..n);
        let mut any = false;
        for peer in (0..n).map(|at| (first + at) % n).filter(|peer| *peer != rank) {
            while self.ranks[rank as usize].core.has_something_to_send(peer) {
                let Some(lane) = self.lane_with_room(rank, peer) else { break };
                let Some(frame) = self.ranks[rank as usize].core.next_send(peer) else { break };
                self.put_on(lane, frame);
                any = true;
            }
        }
        any
    }

    fn lane_with_room(&mut self, from: u32, to: u32) -> Option<LaneId> {
        let lanes = self.wires.between(from, to);
        let turn = self.rng.random_range(0..lanes.len());
        lanes.clone().cycle().skip(turn).take(lanes.len()).find(|lane| {
            let lane = &self.wires.lanes[*lane];
            lane.state != LaneState::Closed && lane.frames.len() < self.scenario.network.capacity
        })
    }

    fn put_on(&mut self, lane: LaneId, outgoing: Outgoing) {
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
    fn sent(&mut self, lane: LaneId, frame: FrameId) {
        self.take_payload(lane, frame);
        let Some(tile) = self.unsent.remove(&frame) else { return };
        let Lane { from, state, .. } = self.wires.lanes[lane];
        if state != LaneState::Closed {
            self.ranks[from as usize].core.on_sent(tile.operation, tile.step, tile.tile);
            self.wake_soon(from);
        }
    }

    /// Reads a frame's payload out of its operation's memory, unless that has been done.
    fn take_payload(&mut self, lane: LaneId, frame: FrameId) {
        let from = self.wires.lanes[lane].from as usize;
        let Some(frame) = self.wires.frames.get_mut(&frame) else { return };
        let Some(tile) = frame.source.take() else { return };
        let running = self.ranks[from].running_of(tile.operation);
        let bytes = frame.header.payload_bytes as usize;
        frame.payload = running.read(tile.slot, tile.offset, tile.tile, bytes);
    }

    fn header_arrives(&mut self, lane: LaneId, frame: FrameId) {
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

    fn payload_arrives(&mut self, lane: LaneId, frame: FrameId) {
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

    /// Hands the ends of operations to the judge. True if there was any.
    fn finish(&mut self, rank: u32) -> bool {
        let mut any = false;
        while let Some(completion) = self.ranks[rank as usize].core.next_completion() {
            any = true;
            self.abandon(rank, completion.operation, completion.result.is_ok());
            let me = &mut self.ranks[rank as usize];
            let running = me.running.remove(&completion.operation).expect("it was in flight");
            let thread = &mut me.threads[running.thread];
            thread.in_flight -= 1;
            if completion.result.is_err() {
                thread.requests.clear();
            }
            let group = running.request.id.group;
            self.trace(|| {
                format!("rank {rank} ends {:#x}: {:?}", completion.operation, completion.result)
            });
            match &completion.result {
                Ok(()) => {
                    self.judge.check_result(&self.scenario, rank, &running, completion.source);
                }
                Err(error) => {
                    assert!(error.operation.contains(&self.scenario.groups[group].name));
                    let (failure, at) = (&error.failure, running.submitted_at);
                    self.judge.check_failure(&self.scenario, rank, group, failure, at, self.now);
                }
            }
            self.judge.check_time(&self.scenario, rank, &running, self.now);
        }
        self.remove_groups(rank);
        any
    }

    /// Makes the lanes let go of an operation's memory.
    fn abandon(&mut self, rank: u32, operation: u64, succeeded: bool) {
        let mut touched = Vec::new();
        for (id, lane) in self.wires.lanes.iter_mut().enumerate() {
            if lane.to == rank {
                match lane.landing {
                    Landing::Apply(placement) if placement.operation == operation => {
                        assert!(!succeeded, "a tile lands in an operation that is over");
                        lane.landing = Landing::Nothing;
                    }
                    _ => {}
                }
            }
            if lane.from == rank {
                let ours = |frame: &&FrameId| {
                    let source = self.wires.frames[frame].source;
                    source.is_some_and(|tile| tile.operation == operation)
                };
                touched.extend(lane.frames.iter().filter(ours).map(|frame| (id, *frame)));
            }
        }
        assert!(!succeeded || touched.is_empty(), "tiles of an operation that is over are unsent");
        for (lane, frame) in touched {
            self.take_payload(lane, frame);
        }
    }

    fn remove_groups(&mut self, rank: u32) {
        if !self.scenario.removes_groups {
            return;
        }
        let me = &mut self.ranks[rank as usize];
        for thread in me.threads.iter_mut().filter(|thread| thread.is_through()) {
            if !std::mem::replace(&mut thread.has_removed, true) {
                me.core.remove_group(self.scenario.groups[thread.group].id);
            }
        }
    }

    fn check_bounds(&self, rank: u32, drained: bool) {
        let me = &self.ranks[rank as usize];
        let Config { early_budget_bytes: budget, max_operations, .. } = self.scenario.config;
        for peer in 0..self.ranks.len() as u32 {
            assert!(me.core.early_account(peer).held <= budget, "more early data than allowed");
        }
        assert!(me.core.operations_in_flight() <= max_operations);
        let held: usize = me.holds.values().map(Vec::len).sum();
        let bound = me.hold_bound(budget, self.scenario.network.lanes, self.scenario.tile_bytes);
        assert!(!drained || held <= bound, "rank {rank} holds {held} bytes, bound {bound}");
    }

    fn strike(&mut self) {
        self.trace(|| format!("{:?}", self.scenario.fault));
        let now = self.now;
        match self.scenario.fault.clone() {
            Fault::Kill { rank, .. } => {
                self.ranks[rank as usize].condition = Condition::Stopped;
                for peer in (0..self.ranks.len() as u32).filter(|peer| *peer != rank) {
                    self.hang_up(rank, peer);
                }
            }
            Fault::Freeze { rank, until, .. } => {
                self.ranks[rank as usize].condition = Condition::Frozen(until.unwrap_or(u64::MAX));
                self.wake_at(rank, until.unwrap_or(now + 1));
            }
            Fault::CutHost { rank, .. } => {
                for lane in &mut self.wires.lanes {
                    if (lane.from == rank || lane.to == rank) && lane.state == LaneState::Open {
                        lane.state = LaneState::Silent;
                    }
                }
            }
            Fault::CutLink { ranks: [a, b], .. } => {
                self.hang_up(a, b);
                self.hang_up(b, a);
            }
            Fault::Abort { rank, group, .. } => {
                let id = self.scenario.groups[group].id;
                let me = &mut self.ranks[rank as usize];
                let thread = me.threads.iter().find(|thread| thread.group == group);
                if thread.is_some_and(|thread| !thread.has_created) {
                    self.schedule(now + MILLISECOND, Event::Fault);
                } else {
                    me.core.abort(Time(now), id, "no reason");
                    self.wake_soon(rank);
                }
            }
            Fault::DepartEarly { rank, .. } => {
                self.ranks[rank as usize].core.end_all("shut down");
                self.say_goodbye(rank);
            }
            _ => unreachable!("other faults have no moment"),
        }
    }

    /// Closes the lanes between two ranks; the second notices some time later.
    fn hang_up(&mut self, rank: u32, peer: u32) {
        let first = self.wires.between(rank, peer).start;
        let is_heard = self.wires.lanes[first].state != LaneState::Silent;
        self.wires.close(rank, peer);
        if !is_heard {
            return;
        }
        let delay = self.rng.random_range(1..=10 * self.scenario.network.delay);
        self.schedule(self.now + delay, Event::Notice { rank: peer, peer: rank });
    }

    fn notice(&mut self, rank: u32, peer: u32) {
        let me = &mut self.ranks[rank as usize];
        self.wires.close(rank, peer);
        me.core.on_peer_lost(Time(self.now), peer, "connection reset by peer");
        self.drop_landings(rank, peer);
        self.wake_soon(rank);
    }

    /// What a peer was sending will not be complete.
    fn drop_landings(&mut self, rank: u32, peer: u32) {
        let me = &mut self.ranks[rank as usize];
        for lane in self.wires.between(peer, rank) {
            let landing = &mut self.wires.lanes[lane].landing;
            if let Landing::Hold(token) = std::mem::replace(landing, Landing::Nothing) {
                me.core.on_held(token);
            }
        }
    }

    /// A rank that is through says goodbye once all it has to say is said.
    fn leave_if_through(&mut self, rank: u32) {
        let leaves = matches!(self.scenario.fault, Fault::Depart { rank: who } if who == rank);
        let n = self.ranks.len() as u32;
        let me = &self.ranks[rank as usize];
        if leaves
            && me.is_through()
            && !(0..n).any(|peer| me.core.has_something_to_send(peer))
            && self.wires.has_delivered_all_of(rank)
        {
            self.say_goodbye(rank);
        }
    }

    fn say_goodbye(&mut self, rank: u32) {
        for peer in (0..self.ranks.len() as u32).filter(|peer| *peer != rank) {
            for lane in self.wires.between(rank, peer) {
                let header = Header::new(FrameKind::Goodbye);
                self.put_on(lane, Outgoing { header, source: Source::Empty });
            }
        }
        while self.ranks[rank as usize].work() {}
        while let Some(completion) = self.ranks[rank as usize].core.next_completion() {
            self.abandon(rank, completion.operation, completion.result.is_ok());
            self.ranks[rank as usize].running.remove(&completion.operation);
        }
        self.ranks[rank as usize].condition = Condition::Stopped;
    }

    fn are_through(&self) -> bool {
        self.ranks.iter().all(|rank| match rank.condition {
            Condition::Stopped | Condition::Frozen(u64::MAX) => true,
            _ => rank.is_through(),
        })
    }

    fn stragglers(&self) -> String {
        let waiting = self.ranks.iter().enumerate().filter(|(_, rank)| !rank.is_through());
        waiting.map(|(number, rank)| format!("{number}: {:?}\n", rank.core)).collect()
    }

    /// Whoever is left makes a new group and works on.
    fn let_survivors_meet(&mut self) {
        let n = self.ranks.len() as u32;
        let lost = Judge::lost_rank(&self.scenario.fault);
        let members: Vec<u32> = (0..n).filter(|rank| Some(*rank) != lost).collect();
        self.trace(|| format!("the survivors {members:?} meet"));
        let call = |collective, sizes| {
            let (algorithm, dtype, op) = (Algorithm::Direct, DataType::I64, ReduceOp::Sum);
            Item::Collective(Call { collective, algorithm, dtype, op, sizes })
        };
        let items = vec![call(Collective::AllReduce, vec![60]), call(Collective::Barrier, vec![])];
        self.scenario.depth = self.scenario.depth.min(self.scenario.config.max_operations);
        self.scenario.timeout = 100 * SECOND;
        let group = self.scenario.groups.len();
        self.scenario.groups.push(GroupPlan {
            id: 0x9999,
            name: "survivors".to_owned(),
            members: members.clone(),
            items,
        });
        if let Fault::NeverPosts { rank, group, .. } = self.scenario.fault {
            // What others sent early for what it never posted goes with the group.
            self.ranks[rank as usize].core.remove_group(self.scenario.groups[group].id);
        }
        for rank in members {
            let starts_at = self.now + self.rng.random_range(0..=self.scenario.network.delay);
            let thread = new_thread(&self.scenario, group, rank, starts_at);
            self.ranks[rank as usize].threads.push(thread);
            self.wake_at(rank, starts_at + 1);
        }
    }
}

fn fault_time(fault: &Fault) -> Option<u64> {
    match *fault {
        Fault::Kill { at, .. }
        | Fault::Freeze { at, .. }
        | Fault::CutHost { at, .. }
        | Fault::CutLink { at, .. }
        | Fault::Abort { at, .. }
        | Fault::DepartEarly { at, .. } => Some(at),
        _ => None,
    }
}

fn new_rank(scenario: &Scenario, rank: u32, rng: &mut StdRng) -> Rank {
    let n = scenario.config.world_size;
    let mut core = Core::new(Config { rank, ..scenario.config.clone() });
    for peer in 0..n {
        core.set_label(peer, format!("rank {peer} on host{peer}"));
    }
    let late = match scenario.fault {
        Fault::Late { rank: who, by } if who == rank => by,
        _ => 0,
    };
    let groups = scenario.groups.iter().enumerate();
    let threads = groups
        .filter(|(_, group)| group.members.contains(&rank))
        .map(|(number, _)| {
            let starts_at = late + rng.random_range(0..=scenario.network.delay);
            new_thread(scenario, number, rank, starts_at)
        })
        .collect();
    Rank {
        core,
        condition: Condition::Running,
        running: Default::default(),
        holds: Default::default(),
        threads,
        wakes_at: None,
        goodbyes: vec![0; n as usize],
    }
}

fn new_thread(scenario: &Scenario, group: usize, rank: u32, starts_at: u64) -> Thread {
    let plan = &scenario.groups[group];
    let n = plan.members.len() as u32;
    let me = plan.members.iter().position(|member| *member == rank).expect("a member") as u32;
    let mut all = std::collections::VecDeque::new();
    for (item, what) in plan.items.iter().enumerate() {
        let id = ItemId { group, item };
        match &scenario.fault {
            Fault::NeverPosts { rank: who, group: of, item: from }
                if *who == rank && *of == group && item >= *from => {}
            Fault::Mismatch { rank: who, group: of, item: at, instead }
                if *who == rank && *of == group && item == *at =>
            {
                all.extend(requests(id, instead, me, n, scenario.tile_bytes).into_iter().map(
                    |mut request| {
                        request.expected = crate::request::Expected::Anything;
                        request
                    },
                ));
            }
            _ => all.extend(requests(id, what, me, n, scenario.tile_bytes)),
        }
    }
    Thread {
        group,
        requests: all,
        in_flight: 0,
        starts_at,
        next_at: 0,
        has_created: false,
        has_removed: false,
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
