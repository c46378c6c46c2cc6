//! The accepting side.

use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::epoll;

use super::MAX_LANES;
use super::connection::{Connection, PumpError, Socket, Stage, pump};
use super::descriptors;
use super::reactor::{Reactor, Session};
use super::strangers::Room;
use crate::doorbell::Doorbell;
use crate::handshake::{Acceptor, Hello, Progress, Rejection, RejectionKind};
use crate::lane::{Lane, Wire};
use crate::shared_memory::{Segment, SharedMemoryLane};
use crate::tcp::{TcpLane, tune};

/// How long a connection may take to authenticate.
const STRANGER_TIMEOUT: Duration = Duration::from_secs(5);
/// Connections accepted before those that exist get their turn again: well below the number of
/// strangers, so that a peer's answer is read before newer connections could push it out.
const ACCEPT_BATCH: usize = 32;
/// Pause after the system has refused to accept.
const REFUSED_PAUSE: Duration = Duration::from_millis(100);
/// Pause while all places are taken by peers that are about to authenticate.
const FULL_PAUSE: Duration = Duration::from_millis(20);

impl Reactor {
    /// Accepts what has arrived on a listener, a bounded number.
    pub(super) fn accept(&mut self, listener: usize) {
        for _ in 0..ACCEPT_BATCH {
            if self.accept_again.is_some() || !self.make_room() {
                return;
            }
            match self.listeners[listener].accept() {
                Ok((socket, remote)) => self.admit(socket, remote),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if is_of_one_connection(&error) => {}
                Err(error) => return self.refused_to_accept(&error),
            }
        }
    }

    fn make_room(&mut self) -> bool {
        match self.strangers.room(Instant::now()) {
            Room::Free => true,
            Room::Evict(token) => {
                self.evict(token);
                true
            }
            Room::Full => {
                self.pause_accepting(FULL_PAUSE);
                false
            }
        }
    }

    fn evict(&mut self, token: u64) {
        self.strangers.remove(token);
        if let Some(connection) = self.connections.remove(&token) {
            self.turned_away(&connection.remote, "too many connections wait to authenticate");
        }
    }

    /// The system has no descriptor or memory left: asking again at once would only burn time.
    fn refused_to_accept(&mut self, error: &io::Error) {
        if let Some(token) = self.strangers.oldest_silent() {
            self.evict(token);
        }
        self.turned_away("unknown", &format!("cannot accept: {error}"));
        self.pause_accepting(REFUSED_PAUSE);
    }

    fn pause_accepting(&mut self, pause: Duration) {
        self.accept_again = Some(Instant::now() + pause);
        self.watch_listeners(false);
    }

    pub(super) fn listen_again(&mut self) {
        self.accept_again = None;
        self.watch_listeners(true);
    }

    fn admit(&mut self, socket: Socket, remote: String) {
        let now = Instant::now();
        let stage = Stage::Accepting { handshake: Acceptor::new(&self.secret), hello: None };
        let deadline = now + STRANGER_TIMEOUT;
        let connection = Connection { socket, stage, deadline, remote };
        match self.watch(connection, epoll::EventFlags::IN) {
            Ok(token) => {
                self.strangers.arrived(token, now);
                // A peer's hello is mostly there already, and so is the garbage of others.
                self.drive(token);
            }
            Err(error) => self.turned_away("unknown", &format!("cannot watch: {error}")),
        }
    }

    /// Lets an incoming connection make what progress it can; returns it if it goes on.
    pub(super) fn drive_incoming(
        &mut self,
        token: u64,
        mut connection: Connection,
    ) -> Option<Connection> {
        match &mut connection.stage {
            Stage::Accepting { handshake, hello } => match pump(&connection.socket, handshake) {
                Ok(Progress::Incomplete | Progress::Established) => Some(connection),
                Ok(Progress::Introduced(asked)) => {
                    let reply = self.check(&asked, &connection.socket);
                    handshake.welcome(&reply);
                    *hello = Some(asked);
                    self.introduced(token, connection, reply)
                }
                Ok(Progress::Confirmed) => {
                    let asked = hello.take()?;
                    self.strangers.remove(token);
                    self.confirmed(connection, asked)
                }
                Err(error) => {
                    self.stranger_failed(token, connection, &error);
                    None
                }
            },
            Stage::AwaitingOffer { .. } => self.take_offer(connection),
            _ => Some(connection),
        }
    }

    fn stranger_failed(&mut self, token: u64, mut connection: Connection, error: &PumpError) {
        self.strangers.remove(token);
        if let Stage::Accepting { handshake, .. } = &mut connection.stage {
            // The connection is being given up; if the reason does not arrive, so be it.
            let _ = connection.socket.send_all(&handshake.take_outgoing());
        }
        match error {
            // A peer that has made do with another connection, or somebody who looked in.
            PumpError::Closed | PumpError::Io(_) => {
                tracing::debug!(remote = connection.remote, %error, "a connection hung up");
            }
            PumpError::Handshake(_) => self.turned_away(&connection.remote, &error.to_string()),
        }
    }

    /// Sends the answer to the hello.
    fn introduced(
        &mut self,
        token: u64,
        mut connection: Connection,
        reply: Result<(), Rejection>,
    ) -> Option<Connection> {
        let Stage::Accepting { handshake, .. } = &mut connection.stage else { return None };
        let sent = connection.socket.send_all(&handshake.take_outgoing());
        let problem = match (reply, sent) {
            (Ok(()), Ok(())) => {
                self.strangers.introduced(token, Instant::now());
                return Some(connection);
            }
            (Err(rejection), _) => rejection.reason,
            (_, Err(error)) => {
                tracing::debug!(remote = connection.remote, %error, "a connection hung up");
                self.strangers.remove(token);
                return None;
            }
        };
        self.strangers.remove(token);
        self.turned_away(&connection.remote, &problem);
        None
    }

    /// Whether the two sides mean the same thing.
    fn check(&self, hello: &Hello, socket: &Socket) -> Result<(), Rejection> {
        let LaneBounds { wire, most } = lane_bounds(socket);
        let (rank, world_size) = (self.config.rank, self.config.world_size);
        let problem = if hello.session != self.config.session {
            format!("this is another session ({:#x})", self.config.session)
        } else if hello.world_size != world_size {
            format!("this job has {world_size} ranks, not {}", hello.world_size)
        } else if hello.acceptor != rank {
            format!("this is rank {rank}, not {}", hello.acceptor)
        } else if hello.initiator >= world_size || hello.initiator == rank {
            format!("rank {} cannot connect to rank {rank}", hello.initiator)
        } else if hello.wire != wire || (wire == Wire::SharedMemory && !self.config.shared_memory) {
            format!("a lane of {:?} cannot be had here", hello.wire)
        } else if hello.lane >= hello.lanes || hello.lanes > most {
            format!("lane {} of {}, at most {most} are allowed", hello.lane, hello.lanes)
        } else {
            return Ok(());
        };
        Err(Rejection { kind: RejectionKind::Mismatch, reason: problem })
    }

    /// The initiator is real. Decides over its lane and says so.
    fn confirmed(&mut self, mut connection: Connection, hello: Hello) -> Option<Connection> {
        let Stage::Accepting { handshake, .. } = &mut connection.stage else { return None };
        let verdict = self.decide(&hello);
        handshake.verdict(&verdict);
        let sent = connection.socket.send_all(&handshake.take_outgoing());
        match (verdict, sent) {
            (Ok(()), Ok(())) => self.commit(connection, hello),
            (Err(rejection), _) => {
                tracing::debug!(peer = hello.initiator, rejection.reason, "lane rejected");
                None
            }
            (_, Err(error)) => {
                tracing::warn!(peer = hello.initiator, %error, "cannot answer a peer");
                None
            }
        }
    }

    fn decide(&self, hello: &Hello) -> Result<(), Rejection> {
        let (rank, peer) = (self.config.rank, hello.initiator);
        let session = self.sessions.get(&peer);
        let (kind, reason) = match (hello.lane, session) {
            (0, Some(_)) => (
                RejectionKind::AlreadyConnected,
                format!("rank {rank} is connected to a rank {peer}: it must not start twice"),
            ),
            (0, None) if rank < peer && self.is_committed(peer) => {
                (RejectionKind::Superseded, format!("rank {rank}'s own connection goes ahead"))
            }
            (0, None) => return Ok(()),
            (lane, Some(session)) if session.takes(hello) => {
                if session.present >> lane & 1 == 0 {
                    return Ok(());
                }
                (RejectionKind::AlreadyConnected, format!("lane {lane} is there already"))
            }
            (lane, _) => (
                RejectionKind::Mismatch,
                format!("lane {lane} belongs to no session between ranks {peer} and {rank}"),
            ),
        };
        Err(Rejection { kind, reason })
    }

    /// The verdict is on its way: the lane exists.
    fn commit(&mut self, mut connection: Connection, hello: Hello) -> Option<Connection> {
        let peer = hello.initiator;
        if hello.lane == 0 {
            let session = Session {
                attempt: hello.attempt,
                initiated: false,
                lanes: hello.lanes,
                present: 1,
                wire: hello.wire,
                established: hello.wire == Wire::Tcp,
                own: self.withdraw(peer),
            };
            self.sessions.insert(peer, session);
        } else if let Some(session) = self.sessions.get_mut(&peer) {
            session.present |= 1 << hello.lane;
        }
        if hello.wire == Wire::SharedMemory {
            connection.deadline = Instant::now() + STRANGER_TIMEOUT;
            connection.stage = Stage::AwaitingOffer { hello };
            return Some(connection);
        }
        match self.tcp_lane(connection.socket) {
            Ok(lane) => self.connected((peer, hello.lane), lane, hello.host),
            Err(error) if hello.lane == 0 => self.abandon(peer, &error.to_string()),
            Err(error) => tracing::warn!(peer, lane = hello.lane, %error, "lane lost"),
        }
        None
    }

    pub(super) fn tcp_lane(&self, socket: Socket) -> io::Result<Box<dyn Lane>> {
        self.unwatch(&socket)?;
        let Socket::Tcp(stream) = socket else {
            return Err(io::Error::other("not a TCP connection"));
        };
        tune(&stream, &self.config.tuning)?;
        Ok(Box::new(TcpLane::new(stream, self.config.frames_per_lane)?))
    }

    /// The peer's shared memory may have arrived.
    fn take_offer(&mut self, connection: Connection) -> Option<Connection> {
        let received = match descriptors::receive::<2>(&connection.socket) {
            Ok(None) => return Some(connection),
            Ok(Some(received)) => Ok(received),
            Err(error) => Err(error),
        };
        let Stage::AwaitingOffer { hello } = &connection.stage else { return None };
        let hello = hello.clone();
        let peer = hello.initiator;
        let lane = received.and_then(|[segment, doorbell]| {
            let segment = Segment::open(segment)?;
            let doorbell = Doorbell::open(doorbell)?;
            let own = self.config.doorbell.as_ref().ok_or(io::ErrorKind::NotFound)?;
            descriptors::send(&connection.socket, &[own.as_fd()])?;
            self.shared_memory_lane(connection.socket, segment, doorbell, false)
        });
        match lane {
            Ok(lane) => {
                if let Some(session) = self.sessions.get_mut(&peer) {
                    session.established = true;
                    session.own = None;
                }
                self.connected((peer, hello.lane), lane, hello.host);
            }
            Err(error) => self.abandon(peer, &error.to_string()),
        }
        None
    }

    pub(super) fn shared_memory_lane(
        &self,
        socket: Socket,
        segment: Segment,
        doorbell: Doorbell,
        initiator: bool,
    ) -> io::Result<Box<dyn Lane>> {
        self.unwatch(&socket)?;
        let Socket::Unix(control) = socket else {
            return Err(io::Error::other("not a local connection"));
        };
        let bytes = self.config.max_frame_bytes;
        Ok(Box::new(SharedMemoryLane::new(segment, initiator, control, doorbell, bytes)?))
    }

    /// A session that had been granted did not come about; an own attempt is taken up again.
    pub(super) fn abandon(&mut self, peer: u32, reason: &str) {
        tracing::warn!(peer, reason, "a connection broke before it could be used");
        if let Some(own) = self.sessions.remove(&peer).and_then(|session| session.own) {
            self.take_up(own);
        }
    }
}

impl Session {
    /// Whether a further lane belongs to this session.
    fn takes(&self, hello: &Hello) -> bool {
        !self.initiated
            && self.established
            && self.wire == hello.wire
            && self.attempt == hello.attempt
            && hello.lane < self.lanes
    }
}

/// What a connection through a socket may become.
struct LaneBounds {
    wire: Wire,
    most: u16,
}

fn lane_bounds(socket: &Socket) -> LaneBounds {
    match socket {
        Socket::Tcp(_) => LaneBounds { wire: Wire::Tcp, most: MAX_LANES as u16 },
        Socket::Unix(_) => LaneBounds { wire: Wire::SharedMemory, most: 1 },
    }
}

/// Errors of `accept` that only say that a connection has gone before it was accepted.
fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted, PermissionDenied};
    matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted | PermissionDenied)
}
