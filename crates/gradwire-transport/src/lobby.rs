//! The connection plane: listening, connecting, authenticating.
//!
//! A [`Lobby`] is one background thread that turns strangers away and hands finished lanes to the
//! engine. No data frame passes through it.
//!
//! A pair of ranks has one *session*: the rank that connects first makes lane 0, and the other lanes
//! follow under the same random attempt number. When both connect at the same time, the lower rank's
//! attempt goes ahead: it rejects the other's as superseded as soon as the verdict over its own is
//! in the other's hands, while the higher rank drops its own attempt for one that arrives. The
//! acceptor decides alone, in the one moment in which the initiator's confirmation arrives, so that
//! both sides always agree on which of the two connections stands.
//!
//! Bounds: 256 connections that have not authenticated (the oldest makes room), for 5 seconds and
//! 194 bytes each; 64 lanes a pair; one log line in 10 seconds about strangers.

mod connection;
mod descriptors;
mod incoming;
mod listeners;
mod outgoing;
mod reactor;
mod resolver;
mod routes;
mod strangers;

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use socket2::{Domain, Protocol, Type};

use crate::endpoint::Endpoint;
use crate::interfaces::Interface;
use crate::lane::Lane;
use crate::tcp::{TcpTuning, tune};
use listeners::Listeners;
use reactor::Reactor;
use resolver::Resolver;

/// Most lanes that a pair of ranks may have.
pub const MAX_LANES: usize = 64;

/// Finds the endpoints that ranks have published.
pub trait Directory: Send + Sync {
    /// The bytes that `rank` has published ([`Endpoint::encode`]).
    ///
    /// May block, but not for ever: the lookups of a lobby are made one after the other, on a
    /// thread of their own.
    ///
    /// # Errors
    /// Why there is nothing, in words.
    fn lookup(&self, rank: u32) -> Result<Vec<u8>, String>;
}

/// What a [`Lobby`] needs to know.
pub struct LobbyConfig {
    /// This rank.
    pub rank: u32,
    /// Ranks in the job.
    pub world_size: u32,
    /// The job's secret: only who knows it can connect.
    pub secret: [u8; 32],
    /// Identifies the job's session: the same number on all ranks, another one in other jobs.
    pub session: u64,
    /// Interfaces to listen on and to connect from, the preferred ones first.
    pub interfaces: Vec<Interface>,
    /// TCP lanes for each peer, 1 to [`MAX_LANES`]; they are spread over the interfaces, and there
    /// is at least one for each.
    pub lanes: usize,
    /// Frames that may wait in a TCP lane.
    pub frames_per_lane: usize,
    /// What sets this rank's host apart from others that the kernel can't tell from it; empty for
    /// nothing (see [`host_identity`](crate::host_identity)).
    pub host_id: String,
    /// Whether ranks of the same host are reached through shared memory.
    pub shared_memory: bool,
    /// Size of each of the two rings of a shared-memory lane.
    pub segment_bytes: usize,
    /// Largest payload that a shared-memory lane must take.
    pub max_frame_bytes: usize,
    /// Socket options of TCP lanes.
    pub tuning: TcpTuning,
    /// The descriptor of this process's [`crate::Doorbell`], as `Doorbell::create` returns it:
    /// ranks of the same host are given it. Needed where `shared_memory` is on.
    pub doorbell: Option<OwnedFd>,
    /// How long to try to reach a peer whose endpoint is known.
    pub connect_timeout: Duration,
    /// Called after each event, from the lobby's thread, so that the engine wakes up.
    pub on_event: Arc<dyn Fn() + Send + Sync>,
    /// Finds the endpoints of the other ranks.
    pub directory: Arc<dyn Directory>,
}

impl fmt::Debug for LobbyConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LobbyConfig")
            .field("rank", &self.rank)
            .field("world_size", &self.world_size)
            .field("secret", &"redacted")
            .field("session", &self.session)
            .field("interfaces", &self.interfaces)
            .field("lanes", &self.lanes)
            .field("frames_per_lane", &self.frames_per_lane)
            .field("host_id", &self.host_id)
            .field("shared_memory", &self.shared_memory)
            .field("segment_bytes", &self.segment_bytes)
            .field("max_frame_bytes", &self.max_frame_bytes)
            .field("tuning", &self.tuning)
            .field("connect_timeout", &self.connect_timeout)
            .finish_non_exhaustive()
    }
}

/// Why a peer could not be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// Nobody listens on any of its addresses: its process has ended.
    Refused,
    /// It could not be reached, or did not answer, in time.
    TimedOut,
    /// It does not want the connection, or is not who it should be.
    Rejected,
    /// Its endpoint could not be found, or is of no use.
    Lookup,
}

/// What has happened in the lobby.
pub enum LobbyEvent {
    /// A lane is ready. Index 0 comes first; the others follow in any order, and some of them may
    /// never come where an interface does not work.
    Connected {
        /// The rank at the other end.
        peer: u32,
        /// The lane.
        lane: Box<dyn Lane>,
        /// Its number among the lanes of this peer.
        index: u16,
        /// Host name of the peer.
        host: String,
    },
    /// A peer that was to be connected could not be reached. [`Lobby::connect`] tries again.
    Failed {
        /// The rank that was wanted.
        peer: u32,
        /// What kind of failure.
        kind: FailureKind,
        /// In words, with host and address.
        reason: String,
    },
}

impl fmt::Debug for LobbyEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LobbyEvent::Connected { peer, lane, index, host } => f
                .debug_struct("Connected")
                .field("peer", peer)
                .field("wire", &lane.wire())
                .field("index", index)
                .field("host", host)
                .finish(),
            LobbyEvent::Failed { peer, kind, reason } => f
                .debug_struct("Failed")
                .field("peer", peer)
                .field("kind", kind)
                .field("reason", reason)
                .finish(),
        }
    }
}

/// What the lobby's thread is asked to do.
enum Command {
    Connect(u32),
    Resolved { peer: u32, endpoint: Result<Vec<u8>, String> },
    Stop,
}

/// What the lobby's thread shares with the others.
struct Shared {
    events: Mutex<VecDeque<LobbyEvent>>,
    /// An eventfd that ends the thread's sleep.
    wake: OwnedFd,
}

impl Shared {
    fn wake(&self) {
        // It can only fail when the counter is full, and then the thread wakes up anyway.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}

/// Listens, connects and authenticates on behalf of one rank.
pub struct Lobby {
    endpoint: Endpoint,
    shared: Arc<Shared>,
    commands: Sender<Command>,
    thread: Option<JoinHandle<()>>,
    resolver: Resolver,
}

impl fmt::Debug for Lobby {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lobby").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

impl Lobby {
    /// Starts to listen. Nobody can connect before [`Lobby::endpoint`] has been published.
    ///
    /// # Errors
    /// `InvalidInput` when the configuration contradicts itself; what the system says when it is
    /// possible neither to listen on any interface nor locally, when it refuses the tuning, or when there are no more threads
    /// or descriptors.
    pub fn start(config: LobbyConfig) -> io::Result<Lobby> {
        check(&config)?;
        check_tuning(&config)?;
        let listeners = Listeners::open(&config)?;
        let endpoint = listeners.endpoint(&config);
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let shared = Arc::new(Shared { events: Mutex::default(), wake });
        let (commands, received) = channel();
        let resolver = Resolver::start(config.directory.clone(), commands.clone(), shared.clone())?;
        let reactor = Reactor::new(
            config,
            endpoint.clone(),
            listeners,
            shared.clone(),
            received,
            resolver.requests(),
        )?;
        let thread =
            thread::Builder::new().name("gradwire-lobby".into()).spawn(move || reactor.run())?;
        Ok(Lobby { endpoint, shared, commands, thread: Some(thread), resolver })
    }

    /// How this rank is reached; to be published where [`Directory::lookup`] finds it.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Makes sure that there is, or soon will be, a session with `peer`. Does not wait: the outcome
    /// comes through [`Lobby::poll`]. Asking again changes nothing.
    pub fn connect(&self, peer: u32) {
        self.command(Command::Connect(peer));
    }

    /// The next event, if there is one.
    pub fn poll(&self) -> Option<LobbyEvent> {
        self.shared.events.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    fn command(&self, command: Command) {
        // The thread only ends on its own when the system refuses to let it wait for events, which
        // it logs; connections are then no longer made.
        if self.commands.send(command).is_ok() {
            self.shared.wake();
        }
    }
}

impl Drop for Lobby {
    fn drop(&mut self) {
        self.command(Command::Stop);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the lobby's thread has panicked");
        }
        self.resolver.stop();
    }
}

fn check(config: &LobbyConfig) -> io::Result<()> {
    let problem = if config.rank >= config.world_size {
        format!("rank {} in a world of {} ranks", config.rank, config.world_size)
    } else if !(1..=MAX_LANES).contains(&config.lanes) {
        format!("{} lanes for each peer, allowed are 1 to {MAX_LANES}", config.lanes)
    } else if config.shared_memory && config.doorbell.is_none() {
        "shared memory without a doorbell".to_owned()
    } else {
        return Ok(());
    };
    Err(io::Error::new(io::ErrorKind::InvalidInput, problem))
}

/// Finds out now, not when the first peer connects, whether the system takes the options.
fn check_tuning(config: &LobbyConfig) -> io::Result<()> {
    let Some(ip) = config.interfaces.iter().find_map(|interface| interface.addresses.first())
    else {
        return Ok(());
    };
    let domain = Domain::for_address(SocketAddr::new(*ip, 0));
    let socket = socket2::Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
    tune(&socket.into(), &config.tuning)
}
