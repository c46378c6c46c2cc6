//! A lane over one TCP connection.

mod incoming;
mod outgoing;
mod tuning;

use std::io;
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use crate::lane::{Frame, Lane, LaneError, Receiver, Sent, Wire};
use incoming::Incoming;
use outgoing::Outgoing;
pub use tuning::{TcpTuning, tune};

/// Bytes that may be queued before a lane asks for no more.
const QUEUE_BYTES: usize = 256 << 10;

/// One TCP connection as a stream of frames.
///
/// Queued frames leave in batches, straight from the caller's memory, with one system call for
/// several. Arriving frames are parsed from a staging buffer, many for each system call, except
/// for large payloads, which the system call puts where they belong.
#[derive(Debug)]
pub struct TcpLane {
    stream: TcpStream,
    outgoing: Outgoing,
    incoming: Incoming,
}

// SAFETY: the raw pointers inside are the caller's memory, which `Payload::Borrowed` and
// `Landing::Direct` promise to stay valid; nothing about them is bound to a thread.
unsafe impl Send for TcpLane {}

impl TcpLane {
    /// Takes over a connection whose peer has been authenticated. At most `max_frames` frames
    /// and about 256 KiB are queued before [`Lane::ready_to_send`] says no.
    ///
    /// Makes the stream non-blocking and switches Nagle's algorithm off.
    ///
    /// # Errors
    ///
    /// What the system says when it refuses either.
    pub fn new(stream: TcpStream, max_frames: usize) -> io::Result<TcpLane> {
        stream.set_nodelay(true)?;
        TcpLane::from_tuned(stream, max_frames)
    }

    /// Like [`TcpLane::new`], for any stream socket whose options have been set ([`tune`]).
    ///
    /// # Errors
    ///
    /// What the system says when it refuses to make the socket non-blocking.
    pub fn from_tuned(stream: TcpStream, max_frames: usize) -> io::Result<TcpLane> {
        stream.set_nonblocking(true)?;
        Ok(TcpLane {
            stream,
            outgoing: Outgoing::new(max_frames, QUEUE_BYTES),
            incoming: Incoming::new(),
        })
    }
}

impl Lane for TcpLane {
    fn wire(&self) -> Wire {
        Wire::Tcp
    }

    fn ready_to_send(&self) -> bool {
        self.outgoing.has_room()
    }

    fn send(&mut self, frame: Frame, sent: Sent<'_>) -> Result<(), LaneError> {
        self.outgoing.push(frame);
        if !self.outgoing.has_room() {
            self.outgoing.flush(self.stream.as_raw_fd(), sent)?;
        }
        Ok(())
    }

    fn flush(&mut self, sent: Sent<'_>) -> Result<bool, LaneError> {
        Ok(self.outgoing.flush(self.stream.as_raw_fd(), sent)?)
    }

    fn has_unsent(&self) -> bool {
        !self.outgoing.is_empty()
    }

    fn receive(&mut self, receiver: &mut dyn Receiver) -> Result<bool, LaneError> {
        self.incoming.receive(self.stream.as_raw_fd(), receiver)
    }

    fn abandon(&mut self, operation: u64) {
        self.outgoing.abandon(operation);
        self.incoming.abandon(operation);
    }

    fn actionable(&self) -> bool {
        // Whole frames never stay behind in the staging buffer: the socket knows all there is.
        false
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    fn limit_in_flight(&mut self, bytes: Option<usize>) -> io::Result<()> {
        // Half of them may stand here, half in the kernel.
        self.outgoing.limit(bytes.map_or(QUEUE_BYTES, |bytes| (bytes / 2).clamp(1, QUEUE_BYTES)));
        tuning::limit_send_buffer(&self.stream, bytes.map(|bytes| bytes / 2))
    }

    fn close(&mut self) {
        // An error means that the connection is gone already, which the next receive reports.
        let _ = self.stream.shutdown(Shutdown::Write);
    }
}
