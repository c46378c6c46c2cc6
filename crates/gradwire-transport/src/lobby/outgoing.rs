//! The connecting side.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::net::sockopt::socket_error;

use super::connection::{Connection, LaneKey, Offer, PumpError, Stage, pump};
use super::descriptors;
use super::listeners::random;
use super::reactor::{Reactor, Session};
use super::routes::{Pairs, Route};
use super::{FailureKind, LobbyEvent, MAX_LANES};
use crate::doorbell::Doorbell;
use crate::endpoint::Endpoint;
use crate::handshake::{HandshakeError, Hello, Initiator, Progress, Rejection, RejectionKind};
use crate::lane::{Lane, Wire};
use crate::shared_memory::Segment;

/// A peer listens before its endpoint can be known, so one that refuses for so long has ended.
const REFUSED_FOR: Duration = Duration::from_millis(300);
/// Pause before the next try where the peer refuses.
const REFUSED_PAUSE: Duration = Duration::from_millis(30);
/// Pause after all routes have failed once; it doubles with each round.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Pause before asking again a peer whose own connection was said to go ahead.
const SUPERSEDED_PAUSE: Duration = Duration::from_millis(500);
/// A single route is given at least this time, at most that, where there are others.
const SHORTEST_TRY: Duration = Duration::from_millis(500);
const LONGEST_TRY: Duration = Duration::from_secs(5);

/// This rank's effort to make one lane.
pub(super) struct Dial {
    key: LaneKey,
    /// Ties the lanes of a session together.
    attempt: u64,
    /// `None` until it has been looked up.
    endpoint: Option<Arc<Endpoint>>,
    pairs: Option<Arc<Pairs>>,
    routes: Vec<Route>,
    stage: DialStage,
    /// The acceptor has been asked for its verdict, which may be yes.
    committed: bool,
    deadline: Instant,
    tries: usize,
    /// Since when, and how often, every try has been refused.
    refused_since: Option<Instant>,
    refused: usize,
    last_error: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DialStage {
    LookingUp,
    Waiting { until: Instant },
    Active { token: u64 },
}

impl Dial {
    fn new(key: LaneKey, attempt: u64, deadline: Instant) -> Self {
        Dial {
            key,
            attempt,
            endpoint: None,
            pairs: None,
            routes: Vec::new(),
            stage: DialStage::LookingUp,
            committed: false,
            deadline,
            tries: 0,
            refused_since: None,
            refused: 0,
            last_error: None,
        }
    }

    fn wire(&self) -> Wire {
        match self.routes.first() {
            Some(Route::Local(_)) => Wire::SharedMemory,
            _ => Wire::Tcp,
        }
    }

    fn host(&self) -> String {
        self.endpoint.as_ref().map_or_else(String::new, |endpoint| endpoint.hostname.clone())
    }

    /// The route of the next try, and how long it may take.
    fn next_try(&self, now: Instant, connect_timeout: Duration) -> (Route, Instant) {
        let route = self.routes[self.tries % self.routes.len()].clone();
        if self.routes.len() == 1 {
            return (route, self.deadline);
        }
        let share = connect_timeout / (2 * self.routes.len() as u32);
        let limit = share.clamp(SHORTEST_TRY, LONGEST_TRY);
        (route, self.deadline.min(now + limit))
    }

    /// Counts a failed try. `Some` once there is no use in going on, and what to say then.
    fn note_failure(&mut self, kind: FailureKind, text: String, now: Instant) -> Option<String> {
        self.committed = false;
        self.tries += 1;
        self.last_error = Some(text.clone());
        if kind != FailureKind::Refused {
            self.refused_since = None;
            self.refused = 0;
            let round = (self.tries / self.routes.len().max(1)) as u32;
            let pause = FIRST_PAUSE * (1 << round.min(6)) / 2;
            let between_rounds = self.tries.is_multiple_of(self.routes.len().max(1));
            let until = if between_rounds { now + pause.min(LONGEST_PAUSE) } else { now };
            self.stage = DialStage::Waiting { until };
            return None;
        }
        self.refused += 1;
        let since = *self.refused_since.get_or_insert(now);
        self.stage = DialStage::Waiting { until: now + REFUSED_PAUSE };
        let everywhere = self.refused >= self.routes.len();
        (everywhere && now.duration_since(since) >= REFUSED_FOR).then_some(text)
    }
}

impl Reactor {
    /// Makes sure that a session with `peer` exists or is on its way.
    pub(super) fn connect(&mut self, peer: u32) {
        let key = (peer, 0);
        if peer == self.config.rank || peer >= self.config.world_size {
            let reason =
                format!("there is no such peer in a world of {} ranks", self.config.world_size);
            return self.emit(LobbyEvent::Failed { peer, kind: FailureKind::Lookup, reason });
        }
        let on_its_way = self.sessions.get(&peer).is_some_and(|session| session.own.is_some());
        let there = self.sessions.get(&peer).is_some_and(|session| session.established);
        if self.dials.contains_key(&key) || there || on_its_way {
            return;
        }
        let attempt = match random() {
            Ok(attempt) => attempt,
            Err(error) => {
                let reason = format!("no random numbers from the system: {error}");
                return self.emit(LobbyEvent::Failed { peer, kind: FailureKind::Lookup, reason });
            }
        };
        let dial = Dial::new(key, attempt, Instant::now() + self.config.connect_timeout);
        match self.sessions.get_mut(&peer) {
            Some(session) => session.own = Some(dial),
            None => self.take_up(dial),
        }
    }

    /// Starts a dial, or goes on with one.
    pub(super) fn take_up(&mut self, mut dial: Dial) {
        let key = dial.key;
        let looked_up = dial.endpoint.is_some();
        dial.stage = if looked_up {
            DialStage::Waiting { until: Instant::now() }
        } else {
            DialStage::LookingUp
        };
        self.dials.insert(key, dial);
        if !looked_up && self.lookups.send(key.0).is_err() {
            self.give_up(key, FailureKind::Lookup, "the thread for lookups has ended".to_owned());
        }
    }

    /// Takes this rank's own attempt back, closing its connection: the peer's goes ahead.
    pub(super) fn withdraw(&mut self, peer: u32) -> Option<Dial> {
        let mut dial = self.dials.remove(&(peer, 0))?;
        if let DialStage::Active { token } = dial.stage {
            self.connections.remove(&token);
        }
        dial.committed = false;
        Some(dial)
    }

    /// Whether the peer may already have granted this rank's own attempt.
    pub(super) fn is_committed(&self, peer: u32) -> bool {
        self.dials.get(&(peer, 0)).is_some_and(|dial| dial.committed)
    }

    /// The endpoint of a peer has been looked up.
    pub(super) fn resolved(&mut self, peer: u32, looked_up: Result<Vec<u8>, String>) {
        let key = (peer, 0);
        if self.dials.get(&key).is_none_or(|dial| dial.stage != DialStage::LookingUp) {
            return;
        }
        match looked_up.and_then(|bytes| decode(peer, &bytes)) {
            Ok(endpoint) => self.found(key, endpoint),
            Err(reason) => self.give_up(key, FailureKind::Lookup, reason),
        }
    }

    fn found(&mut self, key: LaneKey, endpoint: Endpoint) {
        let pairs = Pairs::new(&self.config.interfaces, &self.endpoint, &endpoint);
        let local = endpoint.local_name.clone().filter(|_| {
            self.config.shared_memory && endpoint.host_identity == self.endpoint.host_identity
        });
        let routes = local.map_or_else(|| pairs.routes(0), |name| vec![Route::Local(name)]);
        let Some(dial) = self.dials.get_mut(&key) else { return };
        dial.deadline = Instant::now() + self.config.connect_timeout;
        dial.routes = routes;
        dial.pairs = Some(Arc::new(pairs));
        dial.endpoint = Some(Arc::new(endpoint));
        if dial.routes.is_empty() {
            let reason = "it has no address of a family that this rank has".to_owned();
            return self.give_up(key, FailureKind::Lookup, reason);
        }
        self.try_next(key);
    }

    /// Opens a connection along the next route.
    fn try_next(&mut self, key: LaneKey) {
        let Some(offer) = self.prepare_offer(key) else { return };
        let Some(dial) = self.dials.get(&key) else { return };
        let (route, deadline) = dial.next_try(Instant::now(), self.config.connect_timeout);
        let remote = route.remote();
        let opened = route.open(&self.config.tuning).and_then(|socket| {
            let stage = Stage::Connecting { key, offer };
            let connection = Connection { socket, stage, deadline, remote: remote.clone() };
            self.watch(connection, epoll::EventFlags::OUT)
        });
        match opened {
            Ok(token) => {
                if let Some(dial) = self.dials.get_mut(&key) {
                    dial.stage = DialStage::Active { token };
                }
            }
            Err(error) => self.try_failed(key, kind_of(&error), format!("{remote}: {error}")),
        }
    }

    /// The memory to be shared, made before the peer is asked, so that TCP can be used where there
    /// is none. The outer `None` when the dial is over.
    fn prepare_offer(&mut self, key: LaneKey) -> Option<Option<Offer>> {
        let dial = self.dials.get_mut(&key)?;
        if dial.wire() == Wire::Tcp {
            return Some(None);
        }
        match Segment::create(self.config.segment_bytes) {
            Ok((segment, file)) => Some(Some(Offer { segment, file })),
            Err(error) => {
                tracing::warn!(peer = key.0, %error, "no shared memory to be had, using TCP");
                dial.routes = dial.pairs.as_ref().map_or_else(Vec::new, |pairs| pairs.routes(0));
                dial.tries = 0;
                if dial.routes.is_empty() {
                    let reason = format!("no shared memory ({error}) and no address");
                    self.give_up(key, FailureKind::Lookup, reason);
                    return None;
                }
                Some(None)
            }
        }
    }

    /// Lets an outgoing connection make what progress it can; returns it if it goes on.
    pub(super) fn drive_outgoing(
        &mut self,
        token: u64,
        connection: Connection,
    ) -> Option<Connection> {
        match connection.stage {
            Stage::Connecting { .. } => self.opened(token, connection),
            Stage::Initiating { .. } => self.shake(connection),
            Stage::Offered { key, .. } => self.take_doorbell(key, connection),
            _ => Some(connection),
        }
    }

    /// The system has connected, or failed to.
    fn opened(&mut self, token: u64, connection: Connection) -> Option<Connection> {
        let Connection { socket, stage: Stage::Connecting { key, offer }, deadline, remote } =
            connection
        else {
            return None;
        };
        let mut handshake = Initiator::new(&self.secret, &self.hello(key)?);
        let greeted = socket_error(&socket)
            .map_err(io::Error::from)
            .and_then(|outcome| outcome.map_err(io::Error::from))
            .and_then(|()| socket.send_all(&handshake.take_outgoing()));
        let stage = Stage::Initiating { key, handshake, offer };
        let connection = Connection { socket, stage, deadline, remote };
        match greeted.and_then(|()| self.watch_input(token, &connection)) {
            Ok(()) => Some(connection),
            Err(error) => {
                let text = format!("{}: {error}", connection.remote);
                self.try_failed(key, kind_of(&error), text);
                None
            }
        }
    }

    fn hello(&self, key: LaneKey) -> Option<Hello> {
        let dial = self.dials.get(&key)?;
        Some(Hello {
            initiator: self.config.rank,
            acceptor: key.0,
            world_size: self.config.world_size,
            session: self.config.session,
            attempt: dial.attempt,
            lane: key.1,
            lanes: self.lanes(dial),
            wire: dial.wire(),
            host: self.endpoint.hostname.clone(),
        })
    }

    /// How many lanes a session is to have.
    fn lanes(&self, dial: &Dial) -> u16 {
        let interfaces = dial.pairs.as_ref().map_or(1, |pairs| pairs.count());
        match dial.wire() {
            Wire::Tcp => self.config.lanes.max(interfaces).min(MAX_LANES) as u16,
            Wire::SharedMemory => 1,
        }
    }

    fn shake(&mut self, mut connection: Connection) -> Option<Connection> {
        let Stage::Initiating { key, handshake, .. } = &mut connection.stage else { return None };
        let key = *key;
        match pump(&connection.socket, handshake) {
            Ok(Progress::Confirmed) => {
                let confirmation = handshake.take_outgoing();
                let dial = self.dials.get_mut(&key)?;
                dial.committed = true;
                connection.deadline = dial.deadline;
                if let Err(error) = connection.socket.send_all(&confirmation) {
                    let text = format!("{}: {error}", connection.remote);
                    self.try_failed(key, FailureKind::TimedOut, text);
                    return None;
                }
                Some(connection)
            }
            Ok(Progress::Established) => self.granted(key, connection),
            Ok(_) => Some(connection),
            Err(error) => {
                self.shake_failed(key, &connection.remote, error);
                None
            }
        }
    }

    fn shake_failed(&mut self, key: LaneKey, remote: &str, error: PumpError) {
        let text = format!("{remote}: {error}");
        match error {
            PumpError::Handshake(HandshakeError::Rejected(Rejection {
                kind: RejectionKind::Superseded,
                ..
            })) => {
                if let Some(dial) = self.dials.get_mut(&key) {
                    dial.committed = false;
                    dial.last_error = Some(text);
                    let until = Instant::now() + SUPERSEDED_PAUSE;
                    dial.stage = DialStage::Waiting { until };
                }
            }
            PumpError::Handshake(_) => self.give_up(key, FailureKind::Rejected, text),
            PumpError::Closed | PumpError::Io(_) => {
                self.try_failed(key, FailureKind::TimedOut, text);
            }
        }
    }

    /// The acceptor has granted the lane.
    fn granted(&mut self, key: LaneKey, connection: Connection) -> Option<Connection> {
        let Connection { socket, stage: Stage::Initiating { offer, .. }, deadline, remote } =
            connection
        else {
            return None;
        };
        match offer {
            None => {
                match self.tcp_lane(socket) {
                    Ok(lane) => self.finished(key, lane),
                    Err(error) => {
                        let text = format!("{remote}: cannot use the connection: {error}");
                        self.give_up(key, FailureKind::Rejected, text);
                    }
                }
                None
            }
            Some(Offer { segment, file }) => {
                let doorbell = self.config.doorbell.as_ref()?;
                match descriptors::send(&socket, &[file.as_fd(), doorbell.as_fd()]) {
                    Ok(()) => {
                        let stage = Stage::Offered { key, segment };
                        Some(Connection { socket, stage, deadline, remote })
                    }
                    Err(error) => {
                        let text = format!("{remote}: cannot send shared memory: {error}");
                        self.try_failed(key, FailureKind::TimedOut, text);
                        None
                    }
                }
            }
        }
    }

    /// The peer's doorbell may have arrived.
    fn take_doorbell(&mut self, key: LaneKey, connection: Connection) -> Option<Connection> {
        let received = match descriptors::receive::<1>(&connection.socket) {
            Ok(None) => return Some(connection),
            Ok(Some([doorbell])) => Doorbell::open(doorbell),
            Err(error) => Err(error),
        };
        let Connection { socket, stage: Stage::Offered { segment, .. }, remote, .. } = connection
        else {
            return None;
        };
        let lane =
            received.and_then(|doorbell| self.shared_memory_lane(socket, segment, doorbell, true));
        match lane {
            Ok(lane) => self.finished(key, lane),
            Err(error) => {
                let text = format!("{remote}: cannot share memory: {error}");
                self.try_failed(key, FailureKind::TimedOut, text);
            }
        }
        None
    }

    /// A lane is ready. The first one makes the session and lets the others follow.
    fn finished(&mut self, key: LaneKey, lane: Box<dyn Lane>) {
        let Some(dial) = self.dials.remove(&key) else { return };
        let (peer, index) = key;
        if index > 0 {
            if let Some(session) = self.sessions.get_mut(&peer) {
                session.present |= 1 << index;
            }
            return self.connected(key, lane, dial.host());
        }
        let lanes = self.lanes(&dial);
        let session = Session {
            attempt: dial.attempt,
            initiated: true,
            lanes,
            present: 1,
            wire: dial.wire(),
            established: true,
            own: None,
        };
        self.sessions.insert(peer, session);
        self.connected(key, lane, dial.host());
        for index in 1..lanes {
            self.dial_lane((peer, index), &dial);
        }
    }

    fn dial_lane(&mut self, key: LaneKey, first: &Dial) {
        let deadline = Instant::now() + self.config.connect_timeout;
        let mut dial = Dial::new(key, first.attempt, deadline);
        dial.endpoint = first.endpoint.clone();
        dial.pairs = first.pairs.clone();
        if let Some(pairs) = &dial.pairs {
            dial.routes = pairs.routes(usize::from(key.1));
        }
        self.dials.insert(key, dial);
        self.try_next(key);
    }

    /// Starts the tries that are due, and ends the dials whose time is over.
    pub(super) fn tick_dials(&mut self, now: Instant) {
        let waiting = |dial: &Dial| match dial.stage {
            DialStage::Waiting { until } => Some((dial.key, until, dial.deadline)),
            _ => None,
        };
        let waiting: Vec<_> = self.dials.values().filter_map(waiting).collect();
        for (key, until, deadline) in waiting {
            if now >= deadline {
                self.time_out(key);
            } else if now >= until {
                self.try_next(key);
            }
        }
    }

    fn time_out(&mut self, key: LaneKey) {
        let last = self.dials.get(&key).and_then(|dial| dial.last_error.clone());
        let reason = format!(
            "no connection within {:?}; last: {}",
            self.config.connect_timeout,
            last.as_deref().unwrap_or("nothing was heard")
        );
        self.give_up(key, FailureKind::TimedOut, reason);
    }

    /// One try has failed; others may follow.
    pub(super) fn try_failed(&mut self, key: LaneKey, kind: FailureKind, text: String) {
        let Some(dial) = self.dials.get_mut(&key) else { return };
        tracing::debug!(peer = key.0, lane = key.1, text, "a try to connect failed");
        if let Some(reason) = dial.note_failure(kind, text, Instant::now()) {
            self.give_up(key, FailureKind::Refused, format!("{reason}: its process has ended"));
        }
    }

    /// No lane comes of this dial. Without the first there is no session; without a later one
    /// there is less bandwidth.
    fn give_up(&mut self, key: LaneKey, kind: FailureKind, reason: String) {
        let Some(dial) = self.dials.remove(&key) else { return };
        let (peer, index) = key;
        if index > 0 {
            tracing::warn!(peer, lane = index, reason, "going on with fewer lanes");
            return;
        }
        let reason = match &dial.endpoint {
            Some(endpoint) => {
                format!("rank {peer} on {} (process {}): {reason}", endpoint.hostname, endpoint.pid)
            }
            None => format!("rank {peer}: {reason}"),
        };
        self.emit(LobbyEvent::Failed { peer, kind, reason });
    }
}

fn decode(peer: u32, bytes: &[u8]) -> Result<Endpoint, String> {
    let endpoint = Endpoint::decode(bytes).map_err(|error| error.to_string())?;
    if endpoint.rank == peer {
        Ok(endpoint)
    } else {
        Err(format!("the endpoint published for it is that of rank {}", endpoint.rank))
    }
}

fn kind_of(error: &io::Error) -> FailureKind {
    if error.kind() == io::ErrorKind::ConnectionRefused {
        FailureKind::Refused
    } else {
        FailureKind::TimedOut
    }
}
