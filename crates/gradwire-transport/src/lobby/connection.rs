//! A connection on its way to becoming a lane.

use std::io;
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Instant;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use thiserror::Error;

use crate::handshake::{Acceptor, HandshakeError, Hello, Initiator, Progress};
use crate::shared_memory::Segment;

/// A peer and the index of a lane to it.
pub(super) type LaneKey = (u32, u16);

pub(super) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Socket::Tcp(stream) => stream.as_fd(),
            Socket::Unix(stream) => stream.as_fd(),
        }
    }
}

impl Socket {
    /// Reads without waiting; `None` when nothing is there.
    fn receive(&self, buffer: &mut [u8]) -> Result<Option<usize>, Errno> {
        match rustix::net::recv(self, buffer, RecvFlags::DONTWAIT) {
            Ok((bytes, _)) => Ok(Some(bytes)),
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Sends all bytes at once. A handshake is so short that it always fits in the socket's
    /// buffer, so a socket that does not take it is broken.
    pub(super) fn send_all(&self, bytes: &[u8]) -> io::Result<()> {
        let sent = rustix::net::send(self, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
        if sent == bytes.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }
}

/// Shared memory that is going to be offered to the acceptor.
pub(super) struct Offer {
    pub(super) segment: Segment,
    pub(super) file: OwnedFd,
}

/// How far a connection has come.
pub(super) enum Stage {
    /// Outgoing: waits for the system to connect.
    Connecting { key: LaneKey, offer: Option<Offer> },
    /// Outgoing: in the handshake.
    Initiating { key: LaneKey, handshake: Initiator, offer: Option<Offer> },
    /// Outgoing: has sent the segment and waits for the peer's doorbell.
    Offered { key: LaneKey, segment: Segment },
    /// Incoming: in the handshake, with the hello once it has been read.
    Accepting { handshake: Acceptor, hello: Option<Hello> },
    /// Incoming: authenticated, waits for segment and doorbell.
    AwaitingOffer { hello: Hello },
}

pub(super) struct Connection {
    pub(super) socket: Socket,
    pub(super) stage: Stage,
    pub(super) deadline: Instant,
    /// The other end, for messages.
    pub(super) remote: String,
}

/// Why a connection's handshake stopped.
#[derive(Debug, Error)]
pub(super) enum PumpError {
    #[error("the connection was closed during the handshake")]
    Closed,
    #[error("{}", io::Error::from(*.0))]
    Io(#[from] Errno),
    #[error("{0}")]
    Handshake(#[from] HandshakeError),
}

/// Either side of the handshake.
pub(super) trait Side {
    fn wanted(&self) -> usize;
    fn received(&mut self, bytes: &[u8]) -> Result<Progress, HandshakeError>;
}

impl Side for Initiator {
    fn wanted(&self) -> usize {
        self.wanted()
    }
    fn received(&mut self, bytes: &[u8]) -> Result<Progress, HandshakeError> {
        self.received(bytes)
    }
}

impl Side for Acceptor {
    fn wanted(&self) -> usize {
        self.wanted()
    }
    fn received(&mut self, bytes: &[u8]) -> Result<Progress, HandshakeError> {
        self.received(bytes)
    }
}

/// Moves bytes from the socket to the handshake until something comes of it. It never reads
/// beyond the handshake: what follows belongs to the lane. [`Progress::Incomplete`] when there is
/// nothing more to read now.
pub(super) fn pump(socket: &Socket, side: &mut impl Side) -> Result<Progress, PumpError> {
    let mut buffer = [0; 256];
    loop {
        let wanted = side.wanted().min(buffer.len());
        match socket.receive(&mut buffer[..wanted])? {
            None => return Ok(Progress::Incomplete),
            Some(0) => return Err(PumpError::Closed),
            Some(bytes) => match side.received(&buffer[..bytes])? {
                Progress::Incomplete => {}
                progress => return Ok(progress),
            },
        }
    }
}
