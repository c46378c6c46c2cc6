//! The lane over a segment's rings.

use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use rustix::net::RecvFlags;

use super::ring::{Arrived, Consumer, Producer, padded};
use super::segment::Segment;
use crate::doorbell::Doorbell;
use crate::lane::{Frame, Landing, Lane, LaneError, Receiver, Sent, Wire};

/// Bytes after which a call to receive returns, so that other lanes get their turn.
const BYTES_PER_CALL: usize = 1 << 20;
/// Calls to receive that find nothing between two looks at the control socket.
const CALLS_PER_LOOK: u32 = 1024;

/// Two rings in shared memory as a stream of frames each way.
///
/// Sending copies the payload into the ring, so that a frame is reported as sent at once;
/// receiving shows the engine the payload in the ring. The control socket, over which the two
/// processes have agreed on the segment, wakes a peer that sleeps in `epoll_wait` and tells by its
/// end of file that the peer is gone.
#[derive(Debug)]
pub struct SharedMemoryLane {
    producer: Producer,
    consumer: Consumer,
    /// Frames that found no room.
    waiting: VecDeque<Frame>,
    /// Whether someone wanted to send and was told to wait for room.
    starved: Cell<bool>,
    max_payload_bytes: usize,
    control: UnixStream,
    peer: Doorbell,
    /// Consumed blocks are given back when this many bytes have gathered.
    release_bytes: usize,
    idle_calls: u32,
    peer_gone: bool,
}

// SAFETY: the raw pointers in waiting frames are the caller's memory, which `Payload::Borrowed`
// promises to stay valid; nothing about them is bound to a thread.
unsafe impl Send for SharedMemoryLane {}

impl SharedMemoryLane {
    /// Joins this process's ends of the rings.
    ///
    /// `initiator` is true for exactly one of the two processes, `control` is their authenticated
    /// connection (made non-blocking here), `peer` is the doorbell of the other process.
    /// Payloads of up to `max_payload_bytes` may be sent.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if the ring can't hold two such frames; what the system says when it
    /// refuses to make `control` non-blocking.
    pub fn new(
        segment: Segment,
        initiator: bool,
        control: UnixStream,
        peer: Doorbell,
        max_payload_bytes: usize,
    ) -> io::Result<SharedMemoryLane> {
        let ring_bytes = segment.bytes_per_direction();
        if padded(max_payload_bytes) > ring_bytes / 2 {
            let text = format!(
                "a ring of {ring_bytes} bytes is too small for payloads of {max_payload_bytes} bytes"
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        control.set_nonblocking(true)?;
        let (producer, consumer) = segment.split(initiator);
        Ok(SharedMemoryLane {
            release_bytes: consumer.ring_bytes() / 8,
            producer,
            consumer,
            waiting: VecDeque::new(),
            starved: Cell::new(false),
            max_payload_bytes,
            control,
            peer,
            idle_calls: 0,
            peer_gone: false,
        })
    }

    /// Looks at the control socket now: drains its wake-up bytes and notes whether the peer is
    /// gone. The next [`Lane::receive`] that finds the ring empty reports it.
    pub fn check_closed(&mut self) {
        let mut bytes = [0u8; 64];
        loop {
            match rustix::net::recv(&self.control, &mut bytes, RecvFlags::DONTWAIT) {
                Ok((0, _)) => self.peer_gone = true,
                Ok((got, _)) if got == bytes.len() => continue,
                Err(rustix::io::Errno::INTR) => continue,
                Ok(_) | Err(rustix::io::Errno::AGAIN) => {}
                Err(_) => self.peer_gone = true,
            }
            return;
        }
    }

    /// Puts the frame into the ring if there is room for it; gives it back otherwise.
    fn push(&mut self, frame: Frame, sent: Sent<'_>) -> Result<Option<Frame>, LaneError> {
        let (pointer, bytes) = frame.payload.parts();
        if !self.producer.has_room(bytes)? {
            return Ok(Some(frame));
        }
        // SAFETY: there is room, and the payload is valid: owned, or borrowed and neither sent nor
        // abandoned.
        unsafe { self.producer.push(&frame.header, pointer, bytes) };
        self.peer.ring(self.control.as_fd());
        sent(frame.token, frame.payload);
        Ok(None)
    }

    fn deliver(&mut self, frame: &Arrived, receiver: &mut dyn Receiver) -> Result<(), LaneError> {
        let header = &frame.header;
        let bytes = header.payload_bytes as usize;
        match receiver.arriving(header).map_err(LaneError::Violation)? {
            Landing::Direct { pointer, .. } => {
                // SAFETY: the payload lies within the ring, the landing has room for it, and the
                // engine's memory does not overlap the ring.
                unsafe { std::ptr::copy_nonoverlapping(frame.payload.as_ptr(), pointer, bytes) };
                receiver.landed(header, &[]);
            }
            Landing::Borrow => {
                // SAFETY: the payload lies within the ring and is initialized (the file was zeroed
                // by the kernel). A peer that keeps the rules does not write to it before it is
                // released; one that breaks them garbles plain bytes, which nothing trusts.
                let payload = unsafe { std::slice::from_raw_parts(frame.payload.as_ptr(), bytes) };
                receiver.landed(header, payload);
            }
            Landing::Discard => receiver.landed(header, &[]),
        }
        Ok(())
    }

    fn release(&self) {
        if self.consumer.release() {
            self.peer.ring(self.control.as_fd());
        }
    }

    /// Delivers frames up to the limit; returns their bytes.
    fn receive_frames(&mut self, receiver: &mut dyn Receiver) -> Result<usize, LaneError> {
        let mut received = 0;
        let mut unreleased = 0;
        while received < BYTES_PER_CALL {
            let Some(frame) = self.consumer.peek()? else { break };
            self.deliver(&frame, receiver)?;
            self.consumer.consume(&frame);
            let bytes = padded(frame.header.payload_bytes as usize);
            received += bytes;
            unreleased += bytes;
            if unreleased >= self.release_bytes {
                self.release();
                unreleased = 0;
            }
        }
        if unreleased > 0 {
            self.release();
        }
        Ok(received)
    }
}

impl Lane for SharedMemoryLane {
    fn wire(&self) -> Wire {
        Wire::SharedMemory
    }

    fn ready_to_send(&self) -> bool {
        if !self.waiting.is_empty() {
            return false;
        }
        // Corrupt indices: let the send go ahead, which reports them.
        let room = self.producer.has_room(self.max_payload_bytes).unwrap_or(true);
        if !room {
            self.starved.set(true);
        }
        room
    }

    fn send(&mut self, frame: Frame, sent: Sent<'_>) -> Result<(), LaneError> {
        let (bytes, limit) = (frame.payload.bytes(), self.max_payload_bytes);
        if bytes > limit {
            let text = format!("payload of {bytes} bytes, the lane's limit is {limit}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text).into());
        }
        if !self.waiting.is_empty() {
            self.waiting.push_back(frame);
        } else if let Some(frame) = self.push(frame, sent)? {
            self.starved.set(true);
            self.waiting.push_back(frame);
        }
        Ok(())
    }

    fn flush(&mut self, sent: Sent<'_>) -> Result<bool, LaneError> {
        let mut moved = false;
        while let Some(frame) = self.waiting.pop_front() {
            if let Some(frame) = self.push(frame, sent)? {
                self.waiting.push_front(frame);
                self.starved.set(true);
                break;
            }
            moved = true;
        }
        Ok(moved)
    }

    fn has_unsent(&self) -> bool {
        !self.waiting.is_empty()
    }

    fn receive(&mut self, receiver: &mut dyn Receiver) -> Result<bool, LaneError> {
        let mut received = self.receive_frames(receiver)?;
        if received > 0 {
            self.idle_calls = 0;
            return Ok(true);
        }
        self.idle_calls += 1;
        if self.idle_calls >= CALLS_PER_LOOK {
            self.idle_calls = 0;
            self.check_closed();
        }
        if self.peer_gone {
            // What the peer published before it left is there now.
            received = self.receive_frames(receiver)?;
            if received == 0 {
                return Err(LaneError::Closed);
            }
        }
        Ok(received > 0)
    }

    fn abandon(&mut self, operation: u64) {
        for frame in self.waiting.iter_mut().filter(|frame| frame.operation == operation) {
            frame.payload.own();
        }
    }

    fn actionable(&self) -> bool {
        if self.consumer.has_arrived() || self.peer_gone {
            return true;
        }
        if !self.starved.get() {
            return false;
        }
        self.producer.announce_starvation();
        let bytes = match self.waiting.front() {
            Some(frame) => frame.payload.bytes(),
            None => self.max_payload_bytes,
        };
        let room = self.producer.has_room(bytes).unwrap_or(true);
        // Reported once: whoever still has something to send will ask again.
        self.starved.set(!room);
        room
    }

    fn descriptor_readable(&mut self) {
        self.check_closed();
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.control.as_fd()
    }

    fn close(&mut self) {
        // An error means that the peer is gone already, which the next receive reports.
        let _ = self.control.shutdown(Shutdown::Write);
    }
}
