//! The event loop: modelled time, ranks that react when they please, frames on their way.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::hash::Hasher;

use gradwire_core::{Config, Core, Submission, SubmitError, Time};
use gradwire_reduce::{DataType, ReduceOp};
use gradwire_schedule::{Algorithm, Collective};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rustc_hash::FxHasher;

use crate::judge::Judge;
use crate::network::{FrameId, Landing, LaneId, LaneState, TileSource, Wires};
use crate::rank::{Condition, Rank, Running, Thread};
use crate::request::{ItemId, requests};
use crate::scenario::{Call, Fault, GroupPlan, Item, SECOND, Scenario};

/// No run needs as many events; one that does is going around in circles.
const MAX_EVENTS: u64 = 4_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Event {
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
    pub judge: Judge,
    pub rng: StdRng,
    pub queue: BinaryHeap<Reverse<(u64, u64, Event)>>,
    pub next_number: u64,
    /// Tiles whose lane has yet to report them sent.
    pub unsent: std::collections::BTreeMap<FrameId, TileSource>,
    pub tracing: bool,
    pub hash: FxHasher,
    pub events: u64,
    pub survivors_meet: bool,
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

    pub fn note(&mut self, event: Event) {
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

    pub fn trace(&self, text: impl FnOnce() -> String) {
        if self.tracing {
            println!("{:>14.6} ms  {}", self.now as f64 / 1e6, text());
        }
    }

    pub fn schedule(&mut self, at: u64, event: Event) {
        self.next_number += 1;
        self.queue.push(Reverse((at, self.next_number, event)));
    }

    pub fn wake_at(&mut self, rank: u32, at: u64) {
        let planned = &mut self.ranks[rank as usize].wakes_at;
        if planned.is_none_or(|planned| planned > at) {
            *planned = Some(at);
            self.schedule(at, Event::Wake(rank));
        }
    }

    pub fn wake_soon(&mut self, rank: u32) {
        let reaction = self.rng.random_range(1..=1 + self.scenario.network.reaction);
        self.wake_at(rank, self.now + reaction);
    }

    pub fn handle(&mut self, event: Event) {
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
    pub fn arrives(&self, lane: LaneId, frame: FrameId) -> bool {
        self.wires.lanes[lane].state == LaneState::Open && self.wires.frames.contains_key(&frame)
    }

    /// Handles an event unless the rank stands still; then later, or never.
    pub fn when_awake(&mut self, rank: u32, event: Event, handle: impl FnOnce(&mut Self)) {
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

    pub fn wake(&mut self, rank: u32) {
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

    pub fn submit(&mut self, rank: u32) -> bool {
        let mut any = false;
        for thread in 0..self.ranks[rank as usize].threads.len() {
            any |= self.submit_of(rank, thread);
        }
        any
    }

    pub fn submit_of(&mut self, rank: u32, number: usize) -> bool {
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
                // Each rank decides for itself, so they may differ.
                priority: (self.now % 3) as u8,
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

    /// Hands the ends of operations to the judge. True if there was any.
    pub fn finish(&mut self, rank: u32) -> bool {
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
    pub fn abandon(&mut self, rank: u32, operation: u64, succeeded: bool) {
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

    pub fn remove_groups(&mut self, rank: u32) {
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

    pub fn check_bounds(&self, rank: u32, drained: bool) {
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

    pub fn are_through(&self) -> bool {
        self.ranks.iter().all(|rank| match rank.condition {
            Condition::Stopped | Condition::Frozen(u64::MAX) => true,
            _ => rank.is_through(),
        })
    }

    pub fn stragglers(&self) -> String {
        let waiting = self.ranks.iter().enumerate().filter(|(_, rank)| !rank.is_through());
        waiting.map(|(number, rank)| format!("{number}: {:?}\n", rank.core)).collect()
    }

    /// Whoever is left makes a new group and works on.
    pub fn let_survivors_meet(&mut self) {
        let n = self.ranks.len() as u32;
        let lost = Judge::lost_rank(&self.scenario.fault);
        let members: Vec<u32> = (0..n).filter(|rank| Some(*rank) != lost).collect();
        self.trace(|| format!("the survivors {members:?} meet"));
        let call = |collective, sizes| {
            let (algorithm, dtype, op) = (Algorithm::Direct, DataType::I64, ReduceOp::Sum);
            Item::Collective(Call { collective, algorithm, dtype, op, sizes, ranks_per_host: 1 })
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
            let starts_at = late + rng.random_range(0..=scenario.stagger);
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
