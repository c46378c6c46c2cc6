//! Drives the core over the lanes: moves bytes where the core says.

mod apply;
mod bursts;
mod coding;
mod pool;
mod sending;
mod sink;
mod state;
mod timeline;

use std::sync::Arc;
use std::time::{Duration, Instant};

use gradwire_core::{Completion, Core, HoldToken, OperationId, Plan, Submission, Time};
use gradwire_reduce::Reduction;
use gradwire_transport::{Frame, Lane, LaneError, Lobby, LobbyEvent, Payload, Poller, Wire};
use rustc_hash::FxHashMap;

use crate::counters::{self, Counters};
use crate::memory::Memory;
use crate::trace::Recorder;
use crate::wait::{OperationState, Outcome};
use crate::{Error, counters::add};
use apply::Running;
use bursts::Bursts;
use pool::Pool;
use sink::{Current, Sink};
pub(crate) use state::{DriverState, PeerState};
use timeline::{Arriving, Introduction};

/// Up to so many TCP lanes are asked for data one by one; with more, one look at the poller says
/// which of them have any.
const LANES_ASKED_EACH: usize = 4;

/// How long the goodbye of a peer may come after the end of one of its lanes.
const EXCUSE: Duration = Duration::from_millis(500);

/// The token of a frame that owns its memory.
const NO_TOKEN: u64 = u64::MAX;

/// How things stand with a peer.
#[derive(Debug, Default)]
struct PeerLanes {
    /// Keys of its lanes.
    keys: Vec<usize>,
    /// The lane whose turn is next.
    turn: usize,
    connecting: bool,
    /// It has said goodbye on one of them.
    leaving: bool,
    /// Lanes on which it has said goodbye, and on how many it says it does.
    goodbyes: u32,
    goodbyes_announced: u32,
    /// Since when all lanes that are known here have brought one.
    left: Option<Time>,
    /// It has said goodbye on all its lanes.
    departed: bool,
    /// Since when one of them is broken without a goodbye, and why.
    unexcused: Option<(Time, String)>,
    /// Bytes of tiles on the wire, each way.
    sent: u64,
    received: u64,
}

/// Which lanes over TCP a round asks whether they have or take something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asking {
    /// All of them: whoever waits for the result wants it at once.
    All,
    /// Those that the poller has reported: each question is a system call, and the processor is
    /// wanted elsewhere.
    Ready,
}

pub(crate) struct LaneEntry {
    lane: Box<dyn Lane>,
    peer: u32,
    /// Its number among the peer's lanes, which go round the interfaces.
    index: u16,
    current: Current,
    /// What its goodbye said: the number of lanes that have one.
    goodbye: Option<u32>,
    goodbye_is_counted: bool,
    failure: Option<LaneError>,
    /// The wire took no more the last time, and has not been reported writable since.
    is_full: bool,
    /// What is being received, and until when tiles were sent, where a trace is being recorded.
    arriving: Option<Arriving>,
    sent_until: u64,
}

/// A tile that a lane has accepted and not yet sent.
#[derive(Clone, Copy, Debug)]
struct InFlight {
    operation: OperationId,
    step: u32,
    tile: u32,
    lane: usize,
    /// When the lane was given it, where a trace is being recorded.
    handed: Option<u64>,
}

pub(crate) struct Driver {
    rank: u32,
    core: Core,
    lobby: Lobby,
    lanes: Vec<Option<LaneEntry>>,
    tcp_lanes: usize,
    shared_memory_lanes: usize,
    peers: Vec<PeerLanes>,
    /// Peers that have lanes.
    connected: Vec<u32>,
    /// Peers all of whose lanes that are known here have brought their goodbye, and not yet all.
    parting: Vec<u32>,
    operations: FxHashMap<OperationId, Running>,
    holds: FxHashMap<HoldToken, Box<[u8]>>,
    pool: Pool,
    in_flight: Vec<Option<InFlight>>,
    free: Vec<u64>,
    /// Tokens that a lane has just reported; kept to spare an allocation.
    sent: Vec<u64>,
    /// Lanes that the last look or sleep found readable.
    readable: Vec<usize>,
    pub counters: Arc<Counters>,
    recorder: Arc<Recorder>,
    bursts: Bursts,
    /// Bytes that may be on their way to a peer; `None` for as many as the wire takes.
    in_flight_bytes: Option<usize>,
    /// How many interfaces the lanes of a peer go round.
    interfaces: usize,
    asking: Asking,
    start: Instant,
}

/// An operation to be started.
pub(crate) struct Start {
    pub group: u64,
    pub plan: Arc<Plan>,
    pub tag: u32,
    pub timeout: Duration,
    pub priority: u8,
    /// World ranks of the plan's peers that are known.
    pub peers: Vec<u32>,
    pub input: Vec<Memory>,
    pub output: Vec<Memory>,
    pub reduction: Option<Reduction>,
    /// Number of ranks, where the last reduction divides by it.
    pub finish: Option<u32>,
    /// Where what the codec loses is to be left, laid out like the input (or, where the operation
    /// works in place, like the output).
    pub error: Vec<Memory>,
    /// Makes stochastic rounding differ between operations and ranks.
    pub seed: u64,
    /// What the caller calls it.
    pub label: Option<String>,
}

impl Driver {
    pub fn new(
        core: Core,
        lobby: Lobby,
        (rank, world_size): (u32, u32),
        interfaces: usize,
        counters: Arc<Counters>,
        recorder: Arc<Recorder>,
    ) -> Self {
        Driver {
            rank,
            core,
            lobby,
            lanes: Vec::new(),
            tcp_lanes: 0,
            shared_memory_lanes: 0,
            peers: (0..world_size).map(|_| PeerLanes::default()).collect(),
            connected: Vec::new(),
            parting: Vec::new(),
            operations: FxHashMap::default(),
            holds: FxHashMap::default(),
            pool: Pool::default(),
            in_flight: Vec::new(),
            free: Vec::new(),
            sent: Vec::new(),
            readable: Vec::new(),
            counters,
            recorder,
            bursts: Bursts::default(),
            in_flight_bytes: None,
            interfaces,
            asking: Asking::All,
            start: Instant::now(),
        }
    }

    fn now(&self) -> Time {
        Time(self.start.elapsed().as_nanos() as u64)
    }

    pub fn core(&mut self) -> &mut Core {
        &mut self.core
    }

    pub fn operations_in_flight(&self) -> usize {
        self.core.operations_in_flight()
    }

    /// Number of ranks of this host that are connected.
    pub fn shared_memory_lanes(&self) -> usize {
        self.shared_memory_lanes
    }

    /// Whether one more operation may be in flight.
    pub fn has_room(&self) -> bool {
        self.core.has_room()
    }

    /// Starts an operation and sends what can go at once.
    pub fn submit(&mut self, mut start: Start) -> Result<Arc<OperationState>, Error> {
        let now = self.now();
        let window = self.core.window_tiles();
        let submission = Submission {
            group: start.group,
            plan: start.plan.clone(),
            tag: start.tag,
            deadline: Some(now + start.timeout),
            priority: start.priority,
        };
        let operation = start.plan.descriptor;
        let id = self
            .core
            .submit(now, submission)
            .map_err(|error| Error::not_started(&operation, error))?;
        self.bursts.submitted(now);
        let state = Arc::new(OperationState::new(id));
        let introduction = Introduction::of(&mut start);
        let mut running = Running::new(start, window, state.clone());
        self.introduce(id, introduction, &mut running);
        for peer in &running.peers {
            self.connect(*peer);
        }
        self.operations.insert(id, running);
        self.work();
        self.send();
        self.finish();
        Ok(state)
    }

    fn connect(&mut self, peer: u32) {
        let lanes = &mut self.peers[peer as usize];
        if lanes.keys.is_empty() && !lanes.connecting && !self.core.is_gone(peer) {
            lanes.connecting = true;
            self.lobby.connect(peer);
        }
    }

    /// One round of everything. True if anything moved.
    pub fn pass(&mut self, poller: &mut Poller, asking: Asking, lobby_has_events: bool) -> bool {
        let now = self.now();
        self.asking = asking;
        let mut moved = false;
        if lobby_has_events {
            moved |= self.greet(poller);
        }
        moved |= self.receive(poller, now);
        moved |= self.work();
        moved |= self.send();
        self.bury(poller, now);
        if self.core.next_tick().is_some_and(|tick| tick <= now) {
            self.core.on_tick(now);
            self.send();
            self.part_from_silent(poller);
        }
        moved | self.finish()
    }

    /// Takes over what the lobby has for us.
    fn greet(&mut self, poller: &mut Poller) -> bool {
        let mut any = false;
        while let Some(event) = self.lobby.poll() {
            any = true;
            match event {
                LobbyEvent::Connected { peer, lane, index, host } => {
                    self.core.set_label(peer, format!("rank {peer} on {host}"));
                    self.add_lane(peer, index, lane, poller);
                }
                LobbyEvent::Failed { peer, reason, .. } => {
                    self.peers[peer as usize].connecting = false;
                    let lanes = &self.peers[peer as usize];
                    if lanes.keys.is_empty() && !lanes.departed {
                        let now = self.now();
                        self.core.on_peer_lost(now, peer, &reason);
                    }
                }
            }
        }
        any
    }

    fn add_lane(&mut self, peer: u32, index: u16, lane: Box<dyn Lane>, poller: &mut Poller) {
        let key = self.lanes.iter().position(Option::is_none).unwrap_or_else(|| {
            self.lanes.push(None);
            self.lanes.len() - 1
        });
        if let Err(error) = poller.add(&*lane, key as u64) {
            tracing::error!(peer, %error, "a connection can't be watched and is dropped");
            return;
        }
        *self.lanes_of(lane.wire()) += 1;
        let lanes = &mut self.peers[peer as usize];
        lanes.connecting = false;
        if lanes.keys.is_empty() {
            self.connected.push(peer);
        }
        let after = |other: &usize| self.lanes[*other].as_ref().is_some_and(|it| it.index < index);
        let place = lanes.keys.partition_point(after);
        lanes.keys.insert(place, key);
        tracing::debug!(peer, wire = ?lane.wire(), lanes = lanes.keys.len(), "connected");
        self.lanes[key] = Some(LaneEntry {
            lane,
            peer,
            index,
            current: Current::Nothing,
            goodbye: None,
            goodbye_is_counted: false,
            failure: None,
            is_full: false,
            arriving: None,
            sent_until: 0,
        });
        add(&self.counters.lanes_open, 1);
        if self.in_flight_bytes.is_some() {
            self.share_limit(peer);
        }
    }

    fn lanes_of(&mut self, wire: Wire) -> &mut usize {
        match wire {
            Wire::Tcp => &mut self.tcp_lanes,
            Wire::SharedMemory => &mut self.shared_memory_lanes,
        }
    }

    fn receive(&mut self, poller: &mut Poller, now: Time) -> bool {
        let ask_all = self.asking == Asking::All && self.tcp_lanes <= LANES_ASKED_EACH;
        if !ask_all && self.asking == Asking::All {
            self.look(poller);
        }
        let mut moved = false;
        for key in 0..self.lanes.len() {
            let Some(entry) = &mut self.lanes[key] else { continue };
            let asked =
                ask_all || entry.lane.wire() == Wire::SharedMemory || self.readable.contains(&key);
            if !asked || entry.failure.is_some() {
                continue;
            }
            let mut sink = Sink {
                core: &mut self.core,
                operations: &mut self.operations,
                holds: &mut self.holds,
                pool: &mut self.pool,
                counters: &self.counters,
                now,
                peer: entry.peer,
                current: &mut entry.current,
                goodbye: &mut entry.goodbye,
                received: &mut self.peers[entry.peer as usize].received,
                recorder: &self.recorder,
                rank: self.rank,
                lane: key,
                wire: entry.lane.wire(),
                arriving: &mut entry.arriving,
            };
            match entry.lane.receive(&mut sink) {
                Ok(progress) => moved |= progress,
                Err(error) => entry.failure = Some(error),
            }
            // A reduction takes a while: what it made ready is sent before the next lane's turn.
            moved |= self.work();
        }
        self.readable.clear();
        moved
    }

    /// Asks the poller which lanes have data, without waiting.
    fn look(&mut self, poller: &mut Poller) {
        match poller.look() {
            Ok(woken) => {
                let ready = woken.ready.to_vec();
                self.note_ready(&ready);
            }
            Err(error) => tracing::error!(%error, "the poller fails"),
        }
    }

    /// Notes what a sleep or a look has found.
    pub fn note_ready(&mut self, ready: &[gradwire_transport::Readiness]) {
        for ready in ready {
            let key = ready.key as usize;
            let Some(Some(entry)) = self.lanes.get_mut(key) else { continue };
            entry.is_full &= !ready.writable;
            if ready.readable {
                entry.lane.descriptor_readable();
                self.readable.push(key);
            }
        }
    }

    /// Takes lanes that have ended out of service.
    fn bury(&mut self, poller: &mut Poller, now: Time) {
        for key in 0..self.lanes.len() {
            let Some(entry) = &mut self.lanes[key] else { continue };
            let (peer, goodbye) = (entry.peer, entry.goodbye);
            let failure = entry.failure.take();
            if let Some(announced) = goodbye {
                let is_new = !std::mem::replace(&mut entry.goodbye_is_counted, true);
                let lanes = &mut self.peers[peer as usize];
                lanes.goodbyes += u32::from(is_new);
                lanes.goodbyes_announced = lanes.goodbyes_announced.max(announced);
                self.note_departure(peer, now);
            }
            let Some(error) = failure else { continue };
            tracing::debug!(peer, %error, ?goodbye, "lane ended");
            if matches!(error, LaneError::Closed | LaneError::Io(_)) {
                self.remove_lane(key, poller);
                self.excuse(peer, &error, now);
            } else {
                self.lose(peer, &error.to_string(), poller, now);
            }
        }
        self.lose_unexcused(poller, now);
        for peer in std::mem::take(&mut self.parting) {
            self.note_departure(peer, now);
        }
    }

    /// A lane may end while others still carry what was sent before the goodbye, and a peer that
    /// leaves says none on a lane that is too new for it to know.
    fn excuse(&mut self, peer: u32, error: &LaneError, now: Time) {
        let lanes = &mut self.peers[peer as usize];
        if lanes.leaving {
            self.note_departure(peer, now);
        } else if lanes.keys.is_empty() {
            self.core.on_peer_lost(now, peer, &error.to_string());
        } else if lanes.unexcused.is_none() {
            lanes.unexcused = Some((now, error.to_string()));
        }
    }

    /// Gives up peers that have not followed the end of a lane with a goodbye: what was on its way
    /// there is lost.
    fn lose_unexcused(&mut self, poller: &mut Poller, now: Time) {
        for index in (0..self.connected.len()).rev() {
            let peer = self.connected[index];
            let lanes = &mut self.peers[peer as usize];
            let is_over = |(since, _): &mut (Time, String)| now.since(*since) >= EXCUSE;
            let Some((_, error)) = lanes.unexcused.take_if(is_over) else { continue };
            if !lanes.leaving {
                self.lose(peer, &error, poller, now);
            }
        }
    }

    fn lose(&mut self, peer: u32, error: &str, poller: &mut Poller, now: Time) {
        self.core.on_peer_lost(now, peer, error);
        for key in self.peers[peer as usize].keys.clone() {
            self.remove_lane(key, poller);
        }
    }

    /// Closes the lanes of peers that were given up, so that they learn of it should they wake up.
    fn part_from_silent(&mut self, poller: &mut Poller) {
        while let Some(peer) = self.core.next_given_up() {
            for key in self.peers[peer as usize].keys.clone() {
                self.remove_lane(key, poller);
            }
        }
    }

    /// A peer has left once all its lanes have brought its goodbye. It may have sent on lanes that
    /// are only being made here: those are given a moment to come.
    fn note_departure(&mut self, peer: u32, now: Time) {
        let lanes = &mut self.peers[peer as usize];
        lanes.leaving = true;
        let said_goodbye =
            |key: &usize| self.lanes[*key].as_ref().is_some_and(|entry| entry.goodbye.is_some());
        if lanes.departed || !lanes.keys.iter().all(said_goodbye) {
            return;
        }
        let since = *lanes.left.get_or_insert(now);
        if lanes.goodbyes >= lanes.goodbyes_announced || now.since(since) >= EXCUSE {
            self.peers[peer as usize].departed = true;
            self.core.on_peer_departed(now, peer);
        } else if !self.parting.contains(&peer) {
            self.parting.push(peer);
        }
    }

    fn remove_lane(&mut self, key: usize, poller: &mut Poller) {
        let Some(mut entry) = self.lanes[key].take() else { return };
        if let Err(error) = poller.remove(&*entry.lane) {
            tracing::debug!(peer = entry.peer, %error, "lane was not watched");
        }
        entry.lane.close();
        *self.lanes_of(entry.lane.wire()) -= 1;
        counters::lower(&self.counters.lanes_open, 1);
        let lanes = &mut self.peers[entry.peer as usize];
        lanes.keys.retain(|other| *other != key);
        if lanes.keys.is_empty() {
            self.connected.retain(|peer| *peer != entry.peer);
        }
        if self.in_flight_bytes.is_some() {
            self.share_limit(entry.peer);
        }
        for (token, slot) in self.in_flight.iter_mut().enumerate() {
            if slot.is_some_and(|in_flight| in_flight.lane == key) {
                *slot = None;
                self.free.push(token as u64);
            }
        }
        // What was landing in a hold will not be complete; its operation has failed.
        if let Current::Hold(token) = entry.current {
            self.core.on_held(token);
        }
    }

    /// Reports operations that have ended. Their memory is the caller's again afterwards.
    fn finish(&mut self) -> bool {
        let mut any = false;
        while let Some(Completion { operation, source, result }) = self.core.next_completion() {
            any = true;
            if result.is_err() {
                for entry in self.lanes.iter_mut().flatten() {
                    entry.lane.abandon(operation);
                    entry.current.abandon(operation);
                }
            }
            let counter = match result {
                Ok(()) => &self.counters.operations_completed,
                Err(_) => &self.counters.operations_failed,
            };
            add(counter, 1);
            let mut running = self.operations.remove(&operation).expect("it was in flight");
            self.record_ended(&mut running, &result);
            if let Err(error) = &result
                && !self.compares_clocks(&running)
            {
                tracing::warn!(%error, "operation failed");
            }
            let result = result.map_err(Error::from);
            running.end(&mut self.pool, &self.counters, Outcome { result, source });
        }
        if any && self.core.operations_in_flight() == 0 {
            self.bursts.all_ended(self.now());
        }
        any
    }

    /// Whether a look at the lanes would find something; asked before sleeping.
    pub fn is_actionable(&self) -> bool {
        self.lanes.iter().flatten().any(|entry| entry.lane.actionable())
    }

    /// Tells the poller which lanes wait for room.
    pub fn prepare_to_sleep(&mut self, poller: &mut Poller) {
        for (key, entry) in self.lanes.iter().enumerate() {
            let Some(entry) = entry else { continue };
            let wanted = entry.lane.has_unsent();
            if let Err(error) = poller.want_write(&*entry.lane, key as u64, wanted) {
                tracing::error!(%error, "the poller fails");
            }
        }
        add(&self.counters.sleeps, 1);
    }

    /// How long until the core wants to look at the time.
    pub fn time_to_tick(&self) -> Option<Duration> {
        self.core.next_tick().map(|tick| tick.since(self.now()))
    }

    /// Ends a group on all its ranks.
    pub fn abort(&mut self, group: u64, reason: &str) {
        let now = self.now();
        self.core.abort(now, group, reason);
        self.work();
        self.send();
        self.finish();
    }

    /// Ends what is in flight on this rank.
    pub fn end_groups(&mut self, reason: &str) {
        self.core.end_all(reason);
        self.work();
        self.finish();
    }

    /// Says goodbye on all lanes, those too that have only just been made.
    pub fn say_goodbye(&mut self, poller: &mut Poller) {
        self.greet(poller);
        let mut goodbye = gradwire_core::Header::new(gradwire_core::FrameKind::Goodbye);
        for entry in self.lanes.iter_mut().flatten().filter(|entry| entry.failure.is_none()) {
            goodbye.tile = self.peers[entry.peer as usize].keys.len() as u32;
            let header = goodbye.encode();
            let frame = Frame { header, payload: Payload::Empty, operation: 0, token: NO_TOKEN };
            if let Err(error) = entry.lane.send(frame, &mut |_, _| {}) {
                entry.failure = Some(error);
            }
        }
    }

    /// Pushes out what the lanes still hold. True when nothing is left.
    pub fn drain(&mut self) -> bool {
        self.asking = Asking::All;
        self.send();
        let mut empty = true;
        for entry in self.lanes.iter_mut().flatten().filter(|entry| entry.failure.is_none()) {
            match entry.lane.flush(&mut |_, _| {}) {
                Ok(_) => empty &= !entry.lane.has_unsent(),
                Err(error) => entry.failure = Some(error),
            }
        }
        empty
    }

    /// Closes the sending side of all lanes; true once all peers have closed theirs.
    pub fn close(&mut self, poller: &mut Poller) -> bool {
        for entry in self.lanes.iter_mut().flatten() {
            entry.lane.close();
        }
        let now = self.now();
        self.asking = Asking::All;
        // In shared memory the end of a lane shows on its descriptor alone.
        self.look(poller);
        self.receive(poller, now);
        let finished: Vec<usize> = (0..self.lanes.len())
            .filter(|key| self.lanes[*key].as_ref().is_some_and(|entry| entry.failure.is_some()))
            .collect();
        for key in finished {
            self.remove_lane(key, poller);
        }
        self.lanes.iter().all(Option::is_none)
    }
}
