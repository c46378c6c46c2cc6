//! The lobby's thread: waits for events and hands them to the two sides of connecting.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::PoisonError;
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use super::connection::{Connection, LaneKey, Socket, Stage};
use super::listeners::{Listener, Listeners};
use super::outgoing::Dial;
use super::strangers::Strangers;
use super::{Command, FailureKind, LobbyConfig, LobbyEvent, Shared};
use crate::endpoint::Endpoint;
use crate::handshake::Secret;
use crate::lane::{Lane, Wire};

/// How often deadlines are looked at while there are any.
const TICK: Duration = Duration::from_millis(20);
/// Events taken in one call.
const EVENTS: usize = 256;

const WAKE_TOKEN: u64 = 0;
const FIRST_LISTENER_TOKEN: u64 = 1;
/// Connections have tokens from here on; they are never used twice.
const FIRST_CONNECTION_TOKEN: u64 = 1 << 32;

/// The lanes between this rank and a peer.
pub(super) struct Session {
    /// The initiator's random number.
    pub(super) attempt: u64,
    /// Whether this rank made it.
    pub(super) initiated: bool,
    /// Lanes that there may be.
    pub(super) lanes: u16,
    /// A bit for each lane that there is.
    pub(super) present: u64,
    /// What it is made of.
    pub(super) wire: Wire,
    /// False while the peer has yet to send its shared memory.
    pub(super) established: bool,
    /// This rank's own attempt, to be taken up again should the session not come about.
    pub(super) own: Option<Dial>,
}

pub(super) struct Reactor {
    pub(super) config: LobbyConfig,
    pub(super) secret: Secret,
    pub(super) endpoint: Endpoint,
    pub(super) listeners: Vec<Listener>,
    pub(super) connections: HashMap<u64, Connection>,
    pub(super) dials: HashMap<LaneKey, Dial>,
    pub(super) sessions: HashMap<u32, Session>,
    pub(super) strangers: Strangers,
    /// Set while listeners are left alone.
    pub(super) accept_again: Option<Instant>,
    pub(super) lookups: Sender<u32>,
    epoll: OwnedFd,
    next_token: u64,
    shared: Arc<Shared>,
    commands: Receiver<Command>,
    stopped: bool,
}

impl Reactor {
    pub(super) fn new(
        config: LobbyConfig,
        endpoint: Endpoint,
        listeners: Listeners,
        shared: Arc<Shared>,
        commands: Receiver<Command>,
        lookups: Sender<u32>,
    ) -> io::Result<Reactor> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let data = epoll::EventData::new_u64(WAKE_TOKEN);
        epoll::add(&epoll, &shared.wake, data, epoll::EventFlags::IN)?;
        for (listener, token) in listeners.sockets.iter().zip(FIRST_LISTENER_TOKEN..) {
            let data = epoll::EventData::new_u64(token);
            epoll::add(&epoll, listener, data, epoll::EventFlags::IN)?;
        }
        Ok(Reactor {
            secret: Secret::new(config.secret),
            config,
            endpoint,
            listeners: listeners.sockets,
            connections: HashMap::new(),
            dials: HashMap::new(),
            sessions: HashMap::new(),
            strangers: Strangers::default(),
            accept_again: None,
            lookups,
            epoll,
            next_token: FIRST_CONNECTION_TOKEN,
            shared,
            commands,
            stopped: false,
        })
    }

    /// Runs until it is told to stop.
    pub(super) fn run(mut self) {
        let mut events = Vec::with_capacity(EVENTS);
        let mut ticked = Instant::now();
        while !self.stopped {
            events.clear();
            let timeout = self.timeout();
            match epoll::wait(
                &self.epoll,
                rustix::buffer::spare_capacity(&mut events),
                timeout.as_ref(),
            ) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => {
                    tracing::error!(%error, "cannot wait for connections; no more will be made");
                    return;
                }
            }
            self.dispatch(&events);
            let now = Instant::now();
            if now.duration_since(ticked) >= TICK {
                ticked = now;
                self.tick(now);
            }
        }
    }

    fn timeout(&self) -> Option<Timespec> {
        let idle =
            self.connections.is_empty() && self.dials.is_empty() && self.accept_again.is_none();
        (!idle).then(|| Timespec::try_from(TICK).expect("a short time fits"))
    }

    /// Connections that exist go before those that knock, so that a flood of new ones can't
    /// starve a peer that is about to authenticate.
    fn dispatch(&mut self, events: &[epoll::Event]) {
        for token in events.iter().map(|event| event.data.u64()) {
            match token {
                WAKE_TOKEN => self.obey(),
                FIRST_CONNECTION_TOKEN.. => self.drive(token),
                _ => {}
            }
        }
        for token in events.iter().map(|event| event.data.u64()) {
            if (FIRST_LISTENER_TOKEN..FIRST_CONNECTION_TOKEN).contains(&token) {
                self.accept((token - FIRST_LISTENER_TOKEN) as usize);
            }
        }
    }

    fn obey(&mut self) {
        let mut counter = [0; 8];
        let _ = rustix::io::read(&self.shared.wake, &mut counter);
        while let Ok(command) = self.commands.try_recv() {
            match command {
                Command::Connect(peer) => self.connect(peer),
                Command::Resolved { peer, endpoint } => self.resolved(peer, endpoint),
                Command::Stop => self.stopped = true,
            }
        }
    }

    /// Lets a connection make what progress it can.
    pub(super) fn drive(&mut self, token: u64) {
        let Some(connection) = self.connections.remove(&token) else { return };
        let kept = match connection.stage {
            Stage::Accepting { .. } | Stage::AwaitingOffer { .. } => {
                self.drive_incoming(token, connection)
            }
            _ => self.drive_outgoing(token, connection),
        };
        if let Some(connection) = kept {
            self.connections.insert(token, connection);
        }
    }

    fn tick(&mut self, now: Instant) {
        if self.accept_again.is_some_and(|at| now >= at) {
            self.listen_again();
        }
        let expired = |connection: &Connection| now >= connection.deadline;
        let tokens: Vec<u64> = self
            .connections
            .iter()
            .filter(|(_, connection)| expired(connection))
            .map(|(token, _)| *token)
            .collect();
        for token in tokens {
            if let Some(connection) = self.connections.remove(&token) {
                self.expire(token, connection);
            }
        }
        self.tick_dials(now);
    }

    fn expire(&mut self, token: u64, connection: Connection) {
        match &connection.stage {
            Stage::Accepting { .. } => {
                self.strangers.remove(token);
                self.turned_away(&connection.remote, "no authentication in time");
            }
            Stage::AwaitingOffer { hello } => {
                self.abandon(hello.initiator, "its shared memory did not arrive in time");
            }
            Stage::Connecting { key, .. } => {
                let text = format!("{}: no answer", connection.remote);
                self.try_failed(*key, FailureKind::TimedOut, text);
            }
            Stage::Initiating { key, .. } | Stage::Offered { key, .. } => {
                let text = format!("{}: the handshake took too long", connection.remote);
                self.try_failed(*key, FailureKind::TimedOut, text);
            }
        }
    }

    pub(super) fn turned_away(&mut self, remote: &str, reason: &str) {
        self.strangers.turned_away(remote, reason, Instant::now());
    }

    /// Takes a connection in and watches it.
    pub(super) fn watch(
        &mut self,
        connection: Connection,
        flags: epoll::EventFlags,
    ) -> io::Result<u64> {
        let token = self.next_token;
        epoll::add(&self.epoll, &connection.socket, epoll::EventData::new_u64(token), flags)?;
        self.next_token += 1;
        self.connections.insert(token, connection);
        Ok(token)
    }

    /// Waits for bytes from now on, no longer for the connection.
    pub(super) fn watch_input(&self, token: u64, connection: &Connection) -> io::Result<()> {
        let data = epoll::EventData::new_u64(token);
        Ok(epoll::modify(&self.epoll, &connection.socket, data, epoll::EventFlags::IN)?)
    }

    /// Leaves a connection's socket to whoever takes it.
    pub(super) fn unwatch(&self, socket: &Socket) -> io::Result<()> {
        Ok(epoll::delete(&self.epoll, socket)?)
    }

    /// Switches listening off (`false`) and on.
    pub(super) fn watch_listeners(&self, on: bool) {
        let flags = if on { epoll::EventFlags::IN } else { epoll::EventFlags::empty() };
        for (listener, token) in self.listeners.iter().zip(FIRST_LISTENER_TOKEN..) {
            let data = epoll::EventData::new_u64(token);
            if let Err(error) = epoll::modify(&self.epoll, listener, data, flags) {
                tracing::error!(%error, "cannot watch a listening socket");
            }
        }
    }

    pub(super) fn connected(&self, (peer, index): LaneKey, lane: Box<dyn Lane>, host: String) {
        self.emit(LobbyEvent::Connected { peer, lane, index, host });
    }

    pub(super) fn emit(&self, event: LobbyEvent) {
        self.shared.events.lock().unwrap_or_else(PoisonError::into_inner).push_back(event);
        (self.config.on_event)();
    }
}
