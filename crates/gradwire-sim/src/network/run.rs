//! The event loop.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;

use gradwire_core::{
    Apply, Arrival, Config, Core, Descriptor, HoldToken, OperationId, Outgoing, Placement, Plan,
    Source, Submission, Time, Work,
};
use gradwire_reduce::ReduceOp;
use gradwire_schedule::{Collective, Hosts, Slot, StepIndex};
use gradwire_topology::{Cluster, Graph, LinkId};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rustc_hash::{FxHashMap, FxHashSet};

use super::fair::{Change, FlowId, Shares};
use super::{Fold, NetworkError, Operation, Outcome};

/// The group that everybody is in.
const GROUP: u64 = 1;
/// Frames that a lane takes before it has sent them.
const LANE_FRAMES: usize = 4;

/// A tile in memory: its operation, step and number.
type Tile = (OperationId, StepIndex, u32);

#[derive(Clone, Copy, Debug)]
enum Happening {
    /// A rank looks at what there is to do.
    Wake(u32),
    /// A flow ends, if it is still that version.
    FlowEnds(FlowId, u32),
    /// A frame is encoded and may leave.
    Leaves(usize),
    /// A frame has arrived.
    Arrives(usize),
    /// A rank has applied a tile.
    Applied(u32, Tile),
}

#[derive(Clone, Copy, Debug)]
struct Event {
    at: f64,
    number: u64,
    what: Happening,
}

impl PartialEq for Event {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Event {}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Event {
    /// The earliest event is the greatest.
    fn cmp(&self, other: &Self) -> Ordering {
        other.at.total_cmp(&self.at).then(other.number.cmp(&self.number))
    }
}

struct Frame {
    outgoing: Outgoing,
    lane: usize,
}

/// One direction between a simulated rank and any rank.
struct Lane {
    to: u32,
    from: u32,
    route: Vec<LinkId>,
    latency: f64,
    /// Frames that are being encoded.
    encoding: usize,
    waiting: VecDeque<usize>,
    flow: Option<(FlowId, usize)>,
    /// When the frame before arrives: frames of a lane stay in order.
    last_arrival: f64,
}

struct Rank {
    core: Core,
    plan: Arc<Plan>,
    /// Tiles of the result that are encoded already, for all who get them.
    encoded: FxHashSet<(Slot, u32)>,
    peers: Vec<u32>,
    lanes: FxHashMap<u32, usize>,
    /// When its processor is free.
    free: f64,
    wakes: bool,
    holds: FxHashMap<HoldToken, u32>,
    end: Option<f64>,
}

pub(super) struct Run<'a> {
    operation: &'a Operation,
    graph: &'a Graph,
    hosts: Hosts,
    fold: Fold,
    per_frame: f64,
    per_byte: f64,
    per_coded_byte: f64,
    ranks: Vec<Rank>,
    lanes: Vec<Lane>,
    frames: Vec<Option<Frame>>,
    free_frames: Vec<usize>,
    flow_lane: FxHashMap<FlowId, usize>,
    shares: Shares,
    changes: Vec<Change>,
    events: BinaryHeap<Event>,
    number: u64,
    now: f64,
    sent: u64,
    noise: StdRng,
}

impl<'a> Run<'a> {
    pub(super) fn new(
        cluster: &Cluster,
        graph: &'a Graph,
        operation: &'a Operation,
        fold: Fold,
    ) -> Result<Self, NetworkError> {
        let host = cluster.host();
        let mut run = Run {
            per_frame: host.per_frame.0,
            per_byte: 1.0 / host.reduce.0,
            per_coded_byte: 1.0 / operation.codec_rate,
            hosts: Hosts::by_label((0..operation.ranks).map(|rank| graph.host_of(rank))),
            ranks: Vec::new(),
            lanes: Vec::new(),
            frames: Vec::new(),
            free_frames: Vec::new(),
            flow_lane: FxHashMap::default(),
            shares: Shares::new(capacities(graph, operation)),
            changes: Vec::new(),
            events: BinaryHeap::new(),
            number: 0,
            now: 0.0,
            sent: 0,
            noise: StdRng::seed_from_u64(operation.disturbance.seed),
            operation,
            graph,
            fold,
        };
        for rank in 0..run.fold.period {
            run.add_rank(rank)?;
        }
        Ok(run)
    }

    fn add_rank(&mut self, rank: u32) -> Result<(), NetworkError> {
        let plan = plan(self.operation, rank, &self.hosts)?;
        let config = Config {
            rank,
            world_size: self.operation.ranks,
            window_tiles: self.operation.window_tiles,
            ..Config::default()
        };
        let mut core = Core::new(config);
        let members: Vec<u32> = (0..self.operation.ranks).collect();
        core.create_group(GROUP, "all", &members);
        // Each rank begins with the one above it: so all do alike, and nobody is everybody's first.
        let ranks = self.operation.ranks;
        let mut peers: Vec<u32> = plan.peers.iter().map(|peer| peer.rank).collect();
        peers.sort_unstable_by_key(|peer| (peer + ranks - rank) % ranks);
        let submission =
            Submission { group: GROUP, plan: plan.clone(), tag: 0, priority: 0, deadline: None };
        core.submit(Time::ZERO, submission)
            .map_err(|error| NetworkError::Failed(error.to_string()))?;
        let late = self.operation.disturbance.late.iter().find(|(who, _)| *who == rank);
        let start = late.map_or(0.0, |(_, by)| *by);
        self.ranks.push(Rank {
            core,
            plan,
            encoded: FxHashSet::default(),
            peers,
            lanes: FxHashMap::default(),
            free: start,
            wakes: false,
            holds: FxHashMap::default(),
            end: None,
        });
        self.wake(rank, start);
        Ok(())
    }

    fn schedule(&mut self, at: f64, what: Happening) {
        self.number += 1;
        self.events.push(Event { at, number: self.number, what });
    }

    fn wake(&mut self, rank: u32, at: f64) {
        if !std::mem::replace(&mut self.ranks[rank as usize].wakes, true) {
            self.schedule(at, Happening::Wake(rank));
        }
    }

    /// Runs to the end.
    pub(super) fn finish(mut self) -> Result<Outcome, NetworkError> {
        while let Some(event) = self.events.pop() {
            self.now = event.at;
            match event.what {
                Happening::Wake(rank) => self.look(rank)?,
                Happening::FlowEnds(flow, version) => self.flow_ends(flow, version),
                Happening::Leaves(frame) => self.leaves(frame),
                Happening::Arrives(frame) => self.arrives(frame)?,
                Happening::Applied(rank, (operation, step, tile)) => {
                    self.ranks[rank as usize].core.on_applied(operation, step, tile);
                    self.look(rank)?;
                }
            }
        }
        self.outcome()
    }

    fn outcome(self) -> Result<Outcome, NetworkError> {
        let stuck = self.ranks.iter().filter(|rank| rank.end.is_none()).count();
        if stuck > 0 {
            return Err(NetworkError::Failed(format!("{stuck} ranks never end")));
        }
        let ends = self.ranks.iter().filter_map(|rank| rank.end);
        let carried: Vec<(u32, f64)> = (0..)
            .zip(self.shares.carried.iter().copied())
            .filter(|(_, bytes)| *bytes > 0.0)
            .collect();
        let rates = capacities(self.graph, self.operation);
        let time = |(link, bytes): (u32, f64)| bytes / rates[link as usize];
        let busiest = carried
            .iter()
            .copied()
            .fold((0, 0.0), |best, next| if time(next) > time(best) { next } else { best });
        Ok(Outcome {
            seconds: ends.fold(0.0, f64::max),
            frames: self.sent,
            busiest,
            carried,
            simulated: self.fold.period,
        })
    }

    /// A rank does what there is to do: local work, sends, completions.
    fn look(&mut self, rank: u32) -> Result<(), NetworkError> {
        self.ranks[rank as usize].wakes = false;
        self.work(rank);
        self.send(rank);
        let me = &mut self.ranks[rank as usize];
        while let Some(completion) = me.core.next_completion() {
            completion.result.map_err(|error| NetworkError::Failed(error.to_string()))?;
            me.end = Some(self.now.max(me.end.unwrap_or(0.0)));
        }
        Ok(())
    }

    fn work(&mut self, rank: u32) {
        while let Some(work) = self.ranks[rank as usize].core.next_work() {
            match work {
                Work::Local { placement, .. } => self.apply(rank, &placement),
                Work::ApplyHeld { token, placement } => {
                    self.ranks[rank as usize].holds.remove(&token);
                    self.apply(rank, &placement);
                }
                Work::DropHeld(token) => {
                    self.ranks[rank as usize].holds.remove(&token);
                }
            }
        }
    }

    /// A tile is applied once the processor is through with what came before.
    fn apply(&mut self, rank: u32, placement: &Placement) {
        let is_encoded = self.ranks[rank as usize].plan.steps[placement.step as usize].is_encoded;
        let per_byte = match placement.apply {
            _ if is_encoded => self.per_coded_byte,
            Apply::Reduce { .. } => self.per_byte,
            Apply::Copy { .. } => 0.0,
        };
        let seconds = self.per_frame + per_byte * f64::from(placement.bytes);
        let me = &mut self.ranks[rank as usize];
        me.free = me.free.max(self.now) + seconds;
        let tile = (placement.operation, placement.step, placement.tile);
        let at = me.free;
        self.schedule(at, Happening::Applied(rank, tile));
    }

    fn send(&mut self, rank: u32) {
        for at in 0..self.ranks[rank as usize].peers.len() {
            let peer = self.ranks[rank as usize].peers[at];
            while self.ranks[rank as usize].core.has_something_to_send(peer) {
                let lane = self.lane(rank, peer);
                if self.lanes[lane].waiting.len() + self.lanes[lane].encoding >= LANE_FRAMES {
                    break;
                }
                let Some(outgoing) = self.ranks[rank as usize].core.next_send(peer) else { break };
                self.put(lane, outgoing);
            }
        }
    }

    fn lane(&mut self, rank: u32, peer: u32) -> usize {
        if let Some(lane) = self.ranks[rank as usize].lanes.get(&peer) {
            return *lane;
        }
        let route = self.graph.route(rank, peer, 0);
        let (latency, _) = self.graph.speed(&route);
        let route = route.into_iter().map(|link| self.fold.link(link)).collect();
        self.lanes.push(Lane {
            to: peer,
            from: rank,
            route,
            latency,
            encoding: 0,
            waiting: VecDeque::new(),
            flow: None,
            last_arrival: 0.0,
        });
        let lane = self.lanes.len() - 1;
        self.ranks[rank as usize].lanes.insert(peer, lane);
        lane
    }

    fn put(&mut self, lane: usize, outgoing: Outgoing) {
        self.sent += 1;
        let frame = self.free_frames.pop().unwrap_or_else(|| {
            self.frames.push(None);
            self.frames.len() - 1
        });
        let rank = self.lanes[lane].from;
        let seconds = self.encoding_seconds(rank, &outgoing);
        self.frames[frame] = Some(Frame { outgoing, lane });
        self.lanes[lane].encoding += 1;
        // Frames of a lane leave in order: behind one that is being encoded, others wait.
        if seconds == 0.0 && self.lanes[lane].encoding == 1 {
            self.leaves(frame);
            return;
        }
        let me = &mut self.ranks[rank as usize];
        me.free = me.free.max(self.now) + seconds;
        let at = me.free;
        self.schedule(at, Happening::Leaves(frame));
    }

    /// What encoding a tile takes; nothing where it travels as it is, or was encoded for another
    /// receiver before.
    fn encoding_seconds(&mut self, rank: u32, outgoing: &Outgoing) -> f64 {
        let Source::Tile { step, tile, slot, .. } = outgoing.source else { return 0.0 };
        let me = &mut self.ranks[rank as usize];
        let planned = &me.plan.steps[step as usize];
        if !planned.is_encoded || planned.spreads > 1 && !me.encoded.insert((slot, tile)) {
            return 0.0;
        }
        let (_, bytes) = me.plan.tile(step, tile);
        f64::from(bytes) * self.per_coded_byte
    }

    fn leaves(&mut self, frame: usize) {
        let Some(lane) = self.frames[frame].as_ref().map(|frame| frame.lane) else { return };
        self.lanes[lane].encoding -= 1;
        self.lanes[lane].waiting.push_back(frame);
        if self.lanes[lane].flow.is_none() {
            self.start_next(lane);
        }
    }

    fn start_next(&mut self, lane: usize) {
        let Some(frame) = self.lanes[lane].waiting.pop_front() else { return };
        let payload = self.frames[frame].as_ref().map_or(0, |it| it.outgoing.header.payload_bytes);
        let bytes = gradwire_core::HEADER_BYTES as f64 + f64::from(payload);
        let route = std::mem::take(&mut self.lanes[lane].route);
        let flow = self.shares.start(self.now, &route, bytes, &mut self.changes);
        self.lanes[lane].route = route;
        self.lanes[lane].flow = Some((flow, frame));
        self.flow_lane.insert(flow, lane);
        self.announce();
    }

    fn announce(&mut self) {
        let mut changes = std::mem::take(&mut self.changes);
        for change in changes.drain(..) {
            self.schedule(change.end, Happening::FlowEnds(change.flow, change.version));
        }
        self.changes = changes;
    }

    /// The last byte of a frame has entered the route: the memory is free, the next frame goes.
    fn flow_ends(&mut self, flow: FlowId, version: u32) {
        if !self.shares.is_current(flow, version) {
            return;
        }
        let Some(lane) = self.flow_lane.remove(&flow) else { return };
        let Some((_, frame)) = self.lanes[lane].flow.take() else { return };
        self.shares.end(self.now, flow, &mut self.changes);
        self.announce();
        let jitter = self.operation.disturbance.jitter;
        let late = if jitter > 0.0 { self.noise.random_range(0.0..jitter) } else { 0.0 };
        let arrival =
            (self.now + self.lanes[lane].latency + late).max(self.lanes[lane].last_arrival);
        self.lanes[lane].last_arrival = arrival;
        self.schedule(arrival, Happening::Arrives(frame));
        self.start_next(lane);
        let from = self.lanes[lane].from;
        let source = self.frames[frame].as_ref().map(|it| it.outgoing.source.clone());
        if let Some(Source::Tile { operation, step, tile, .. }) = source {
            self.ranks[from as usize].core.on_sent(operation, step, tile);
        }
        self.wake(from, self.now);
    }

    fn arrives(&mut self, frame: usize) -> Result<(), NetworkError> {
        let Some(Frame { outgoing, lane }) = self.frames[frame].take() else { return Ok(()) };
        self.free_frames.push(frame);
        let (to, by) = self.fold.image(self.lanes[lane].to);
        let from = self.fold.moved(self.lanes[lane].from, by);
        let now = Time((self.now * 1e9) as u64);
        let arrival = self.ranks[to as usize]
            .core
            .on_frame(now, from, &outgoing.header)
            .map_err(NetworkError::Failed)?;
        match arrival {
            Arrival::Apply(placement) => self.apply(to, &placement),
            Arrival::Hold(token) => {
                let me = &mut self.ranks[to as usize];
                me.holds.insert(token, outgoing.header.payload_bytes);
                me.core.on_held(token);
            }
            Arrival::Abort { .. } => {
                return Err(NetworkError::Failed("a rank aborted the group".to_owned()));
            }
            Arrival::Control | Arrival::Discard | Arrival::Goodbye => {}
        }
        self.wake(to, self.now);
        Ok(())
    }
}

/// Capacity of each link in bytes per second, slow hosts' NICs reduced.
pub fn capacities(graph: &Graph, operation: &Operation) -> Vec<f64> {
    let slow = &operation.disturbance.slow;
    let factor = |link: &gradwire_topology::Link| {
        let host = match (link.from, link.to) {
            (
                gradwire_topology::Vertex::Nic { host, .. },
                gradwire_topology::Vertex::Switch { .. },
            )
            | (
                gradwire_topology::Vertex::Switch { .. },
                gradwire_topology::Vertex::Nic { host, .. },
            ) => Some(host),
            _ => None,
        };
        let entry = slow.iter().find(|(who, _)| Some(*who) == host);
        entry.map_or(1.0, |(_, factor)| 1.0 / factor)
    };
    graph.links.iter().map(|link| link.rate * factor(link)).collect()
}

/// The plan of one rank.
fn plan(operation: &Operation, rank: u32, hosts: &Hosts) -> Result<Arc<Plan>, NetworkError> {
    let Operation { collective, algorithm, elements, dtype, codec, ranks, .. } = *operation;
    let program = algorithm
        .program_on(collective, rank, hosts)
        .map_err(|error| NetworkError::Unsupported(error.to_string()))?;
    let size = dtype.size_bytes() as u64;
    let part = |chunks: u32, chunk: u32| {
        let chunks = u64::from(chunks);
        (elements / chunks + u64::from(u64::from(chunk) < elements % chunks)) * size
    };
    let bytes = |chunks: u32, whole: u32| -> Vec<u64> {
        (0..chunks).map(|chunk| part(whole.max(1), chunk)).collect()
    };
    let (inputs, outputs) = match collective {
        Collective::Barrier => {
            (vec![0; program.input_chunks as usize], vec![0; program.output_chunks as usize])
        }
        Collective::AllReduce | Collective::Reduce { .. } | Collective::Broadcast { .. } => {
            (Vec::new(), bytes(program.output_chunks, program.output_chunks))
        }
        Collective::ReduceScatter => (bytes(program.input_chunks, ranks), vec![part(ranks, rank)]),
        Collective::AllGather => (vec![part(ranks, rank)], bytes(program.output_chunks, ranks)),
        _ => (bytes(program.input_chunks, ranks), bytes(program.output_chunks, ranks)),
    };
    let op = ReduceOp::Sum;
    let descriptor = Descriptor { collective, algorithm, dtype, op, codec, count: elements };
    Plan::new(descriptor, &program, inputs, outputs, operation.tile_bytes)
        .map_err(|error| NetworkError::Unsupported(error.to_string()))
}
