//! The trait that every wire implements.

use std::os::fd::BorrowedFd;

use gradwire_core::{HEADER_BYTES, Header, HeaderError};
use thiserror::Error;

/// The kind of a wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wire {
    /// A TCP connection.
    Tcp,
    /// Rings in memory shared by two processes of one host.
    SharedMemory,
}

/// The bytes behind a frame's header.
#[derive(Debug)]
pub enum Payload {
    /// Nothing follows.
    Empty,
    /// The caller's memory. It stays valid until the lane reports the frame as sent, or until
    /// [`Lane::abandon`] is called for the frame's operation.
    Borrowed {
        /// First byte.
        pointer: *const u8,
        /// Number of bytes.
        bytes: usize,
    },
    /// Bytes that the frame brings along.
    Owned(Box<[u8]>),
}

impl Payload {
    /// Number of bytes.
    pub fn bytes(&self) -> usize {
        self.parts().1
    }

    /// First byte and number of bytes.
    pub(crate) fn parts(&self) -> (*const u8, usize) {
        match self {
            Payload::Empty => (std::ptr::null(), 0),
            Payload::Borrowed { pointer, bytes } => (*pointer, *bytes),
            Payload::Owned(bytes) => (bytes.as_ptr(), bytes.len()),
        }
    }

    /// Replaces borrowed memory, which is still valid, by a copy.
    pub(crate) fn own(&mut self) {
        if let Payload::Borrowed { pointer, bytes } = *self {
            // SAFETY: the lane that holds a borrowed payload calls this before its memory goes.
            let bytes = unsafe { std::slice::from_raw_parts(pointer, bytes) };
            *self = Payload::Owned(bytes.into());
        }
    }
}

/// A frame to be sent.
#[derive(Debug)]
pub struct Frame {
    /// The encoded header.
    pub header: [u8; HEADER_BYTES],
    /// What follows it.
    pub payload: Payload,
    /// The operation that owns borrowed memory (for [`Lane::abandon`]).
    pub operation: u64,
    /// Handed back when the frame's memory is free again.
    pub token: u64,
}

/// Where the payload of an arriving frame goes.
#[derive(Debug)]
pub enum Landing {
    /// Straight to this memory, which has room for the whole payload and stays valid until
    /// [`Receiver::landed`] is called or [`Lane::abandon`] names the operation.
    Direct {
        /// First byte of the destination.
        pointer: *mut u8,
        /// The operation that owns the memory.
        operation: u64,
    },
    /// The receiver wants to look at the whole payload in the lane's own memory.
    Borrow,
    /// Nobody wants it; it is read and dropped.
    Discard,
}

/// Takes arriving frames. Implemented by the engine.
pub trait Receiver {
    /// A header has arrived. Called exactly once for each frame, in the lane's order, before its
    /// payload. An error is the peer's violation of the protocol: the lane stops and returns it.
    fn arriving(&mut self, header: &Header) -> Result<Landing, String>;

    /// The payload of the last announced frame is complete: `payload` holds it where the landing
    /// was [`Landing::Borrow`], and is empty otherwise. Called for payloads of zero bytes too, and
    /// after [`Landing::Discard`], but not for a direct landing that has been abandoned.
    fn landed(&mut self, header: &Header, payload: &[u8]);
}

/// Why a lane is of no more use.
#[derive(Debug, Error)]
pub enum LaneError {
    /// The peer closed the connection (everything it sent before has been received).
    #[error("connection closed by the peer")]
    Closed,
    /// The system reports an error.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// The peer sent a header that can't be.
    #[error("malformed frame: {0}")]
    Header(#[from] HeaderError),
    /// The receiver refused a frame.
    #[error("protocol violation: {0}")]
    Violation(String),
}

/// Called with a frame's token and payload as soon as its memory is no longer needed.
pub type Sent<'a> = &'a mut dyn FnMut(u64, Payload);

/// One stream of frames to one peer. Nothing here blocks.
pub trait Lane: Send {
    /// What kind of wire it is.
    fn wire(&self) -> Wire;

    /// Whether [`Lane::send`] may be called with a payload of up to
    /// [`gradwire_core::MAX_PAYLOAD_BYTES`] (a lane takes little more than the wire does, so that
    /// frames wait in the core, where their order can still change).
    fn ready_to_send(&self) -> bool;

    /// Accepts a frame, for which `sent` is called now or in a later [`Lane::flush`].
    fn send(&mut self, frame: Frame, sent: Sent<'_>) -> Result<(), LaneError>;

    /// Pushes accepted frames onto the wire as far as it takes them. True if any byte moved.
    fn flush(&mut self, sent: Sent<'_>) -> Result<bool, LaneError>;

    /// Whether accepted frames are waiting for the wire.
    fn has_unsent(&self) -> bool;

    /// Takes in what has arrived, a bounded amount (about 1 MiB) a call. True if any byte moved.
    fn receive(&mut self, receiver: &mut dyn Receiver) -> Result<bool, LaneError>;

    /// The memory of `operation` is about to go away: what is queued from it is copied, what is
    /// arriving for it is dropped.
    fn abandon(&mut self, operation: u64);

    /// Whether, as far as can be told without a system call, [`Lane::receive`] would find
    /// something or room has appeared for frames that had to wait. The driver asks this of every
    /// lane after it has announced that it is about to sleep.
    fn actionable(&self) -> bool;

    /// The poller found [`Lane::descriptor`] readable; [`Lane::receive`] is to be called next.
    fn descriptor_readable(&mut self) {}

    /// Becomes readable when there is something to receive while the poller sleeps.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// Keeps the bytes that were accepted and that the peer's host has not yet got to about so
    /// many, so that a frame accepted next is not long behind them; `None` lifts the limit. Wires
    /// that hold little have nothing to do.
    ///
    /// # Errors
    /// What the system says when it refuses.
    fn limit_in_flight(&mut self, _bytes: Option<usize>) -> std::io::Result<()> {
        Ok(())
    }

    /// Ends the sending side in good order; what was accepted has been flushed before.
    fn close(&mut self);
}
