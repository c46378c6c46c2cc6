//! The sending half: a queue of frames and the part of the first that is on the wire.

use std::collections::VecDeque;
use std::io;
use std::os::fd::RawFd;

use gradwire_core::HEADER_BYTES;

use crate::lane::{Frame, Sent};

/// Frames handed to the system in one call.
const BATCH_FRAMES: usize = 32;

/// Frames that wait for the socket.
#[derive(Debug)]
pub(super) struct Outgoing {
    frames: VecDeque<Frame>,
    /// Bytes of the first frame (header included) that the socket has taken.
    taken: usize,
    /// Bytes of all frames that the socket has not taken.
    queued_bytes: usize,
    max_frames: usize,
    max_bytes: usize,
}

impl Outgoing {
    pub(super) fn new(max_frames: usize, max_bytes: usize) -> Self {
        Outgoing { frames: VecDeque::new(), taken: 0, queued_bytes: 0, max_frames, max_bytes }
    }

    pub(super) fn has_room(&self) -> bool {
        self.queued_bytes < self.max_bytes && self.frames.len() < self.max_frames
    }

    pub(super) fn limit(&mut self, max_bytes: usize) {
        self.max_bytes = max_bytes;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    pub(super) fn push(&mut self, frame: Frame) {
        self.queued_bytes += frame_bytes(&frame);
        self.frames.push_back(frame);
    }

    /// Writes until the queue is empty or the socket takes no more. True if any byte moved.
    pub(super) fn flush(&mut self, socket: RawFd, sent: Sent<'_>) -> io::Result<bool> {
        let mut moved = false;
        while !self.frames.is_empty() {
            let (written, offered) = match self.write_batch(socket) {
                Ok(amounts) => amounts,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            moved = true;
            self.advance(written, sent);
            if written < offered {
                break;
            }
        }
        Ok(moved)
    }

    /// One system call for the first frames of the queue: (bytes written, bytes offered).
    fn write_batch(&self, socket: RawFd) -> io::Result<(usize, usize)> {
        let mut vectors = [EMPTY_VECTOR; 2 * BATCH_FRAMES];
        let mut used = 0;
        let mut offered = 0;
        let mut skip = self.taken;
        for frame in self.frames.iter().take(BATCH_FRAMES) {
            for (pointer, bytes) in [(frame.header.as_ptr(), HEADER_BYTES), frame.payload.parts()] {
                let skipped = skip.min(bytes);
                skip -= skipped;
                if bytes > skipped {
                    let base = pointer.wrapping_add(skipped).cast_mut().cast();
                    vectors[used] = libc::iovec { iov_base: base, iov_len: bytes - skipped };
                    used += 1;
                    offered += bytes - skipped;
                }
            }
        }
        // SAFETY: an all-zero msghdr is valid (no address, no control data).
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = vectors.as_mut_ptr();
        message.msg_iovlen = used as _;
        // SAFETY: the vectors lie within queued headers and payloads; borrowed payloads are valid
        // until their frame is reported sent or abandoned, and the system only reads them.
        let written = unsafe { libc::sendmsg(socket, &message, libc::MSG_NOSIGNAL) };
        match usize::try_from(written) {
            Ok(written) => Ok((written, offered)),
            Err(_) => Err(io::Error::last_os_error()),
        }
    }

    fn advance(&mut self, written: usize, sent: Sent<'_>) {
        self.queued_bytes -= written;
        self.taken += written;
        while let Some(bytes) = self.frames.front().map(frame_bytes)
            && self.taken >= bytes
        {
            self.taken -= bytes;
            if let Some(frame) = self.frames.pop_front() {
                sent(frame.token, frame.payload);
            }
        }
    }

    /// Replaces borrowed memory of `operation` by copies.
    pub(super) fn abandon(&mut self, operation: u64) {
        for frame in self.frames.iter_mut().filter(|frame| frame.operation == operation) {
            frame.payload.own();
        }
    }
}

const EMPTY_VECTOR: libc::iovec = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };

fn frame_bytes(frame: &Frame) -> usize {
    HEADER_BYTES + frame.payload.bytes()
}
