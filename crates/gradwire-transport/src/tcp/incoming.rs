//! The receiving half: staging buffer, parser, and reads straight to the destination.

use std::io;
use std::os::fd::RawFd;

use gradwire_core::{HEADER_BYTES, Header};

use crate::lane::{Landing, LaneError, Receiver};

/// Size of the staging buffer.
const STAGING_BYTES: usize = 64 << 10;
/// Bytes after which a call to receive returns, so that other lanes get their turn.
const BYTES_PER_CALL: usize = 1 << 20;
/// From this size on, a payload tells that more of its kind follow.
const LARGE_PAYLOAD: usize = 16 << 10;
/// What is read into the staging buffer behind a large payload: the next header and a few small
/// frames. More would be payload that has to be copied once again.
const BEHIND_LARGE: usize = 1 << 10;

/// Where the rest of the current payload goes.
#[derive(Debug)]
enum Destination {
    Memory {
        pointer: *mut u8,
        operation: u64,
    },
    Scratch,
    Nowhere,
    /// Like `Nowhere`, and nobody is told.
    Abandoned,
}

#[derive(Debug)]
enum Progress {
    /// The next header is incomplete.
    Header,
    /// `done` bytes of the payload have been received.
    Payload { header: Header, destination: Destination, done: usize },
    /// The receiver refused a frame; nothing can be made of what follows.
    Refused,
}

/// What arrives on the socket.
#[derive(Debug)]
pub(super) struct Incoming {
    staging: Box<[u8]>,
    /// The staged bytes that wait to be parsed are `start..end`.
    start: usize,
    end: usize,
    scratch: Vec<u8>,
    progress: Progress,
    /// Whether the last payload was a large one.
    bulk: bool,
}

impl Incoming {
    pub(super) fn new() -> Self {
        Incoming {
            staging: vec![0; STAGING_BYTES].into(),
            start: 0,
            end: 0,
            scratch: Vec::new(),
            progress: Progress::Header,
            bulk: false,
        }
    }

    /// Reads and delivers a bounded amount. True if any byte moved.
    pub(super) fn receive(
        &mut self,
        socket: RawFd,
        receiver: &mut dyn Receiver,
    ) -> Result<bool, LaneError> {
        let mut received = 0;
        while received < BYTES_PER_CALL {
            let (got, asked) = match self.read(socket) {
                Ok((0, _)) => return Err(LaneError::Closed),
                Ok(amounts) => amounts,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error.into()),
            };
            received += got;
            self.parse(receiver)?;
            if got < asked {
                break;
            }
        }
        Ok(received > 0)
    }

    /// Drops what is arriving for `operation`.
    pub(super) fn abandon(&mut self, operation: u64) {
        if let Progress::Payload { destination, .. } = &mut self.progress
            && matches!(destination, Destination::Memory { operation: of, .. } if *of == operation)
        {
            *destination = Destination::Abandoned;
        }
    }

    /// One system call: the rest of the payload to its destination, what follows to the staging
    /// buffer. Returns (bytes read, bytes asked for).
    fn read(&mut self, socket: RawFd) -> io::Result<(usize, usize)> {
        self.staging.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        let (pointer, rest) = self.rest_of_payload();
        let direct = rest.min(BYTES_PER_CALL);
        let large =
            direct >= LARGE_PAYLOAD || (self.bulk && matches!(self.progress, Progress::Header));
        let staged = match large {
            _ if rest > direct => 0,
            true => BEHIND_LARGE,
            false => STAGING_BYTES - self.end,
        };
        let behind = self.staging[self.end..].as_mut_ptr();
        let vectors = [
            libc::iovec { iov_base: pointer.cast(), iov_len: direct },
            libc::iovec { iov_base: behind.cast(), iov_len: staged },
        ];
        // SAFETY: the first vector is within the landing, which has room for the whole payload
        // and is valid until it is reported landed or abandoned, or within the scratch memory;
        // the second is within the staging buffer.
        let got = unsafe { libc::readv(socket, vectors.as_ptr(), 2) };
        let Ok(got) = usize::try_from(got) else { return Err(io::Error::last_os_error()) };
        let landed = got.min(direct);
        if let Progress::Payload { done, .. } = &mut self.progress {
            *done += landed;
        }
        self.end += got - landed;
        Ok((got, direct + staged))
    }

    /// The part of the current payload's memory that is still empty.
    fn rest_of_payload(&mut self) -> (*mut u8, usize) {
        let Progress::Payload { header, destination, done } = &self.progress else {
            return (std::ptr::null_mut(), 0);
        };
        let rest = header.payload_bytes as usize - done;
        match destination {
            Destination::Memory { pointer, .. } => (pointer.wrapping_add(*done), rest),
            Destination::Scratch => (self.scratch[*done..].as_mut_ptr(), rest),
            Destination::Nowhere | Destination::Abandoned => (std::ptr::null_mut(), 0),
        }
    }

    /// Works through what lies in the staging buffer.
    fn parse(&mut self, receiver: &mut dyn Receiver) -> Result<(), LaneError> {
        loop {
            match self.progress {
                Progress::Header => {
                    if !self.parse_header(receiver)? {
                        return Ok(());
                    }
                }
                Progress::Payload { .. } => {
                    if !self.parse_payload(receiver) {
                        return Ok(());
                    }
                }
                Progress::Refused => {
                    return Err(LaneError::Violation("an earlier frame was refused".into()));
                }
            }
        }
    }

    /// False if the header is not complete yet.
    fn parse_header(&mut self, receiver: &mut dyn Receiver) -> Result<bool, LaneError> {
        let staged = &self.staging[self.start..self.end];
        let Some(bytes) = staged.first_chunk::<HEADER_BYTES>() else { return Ok(false) };
        let header = Header::decode(bytes)?;
        self.start += HEADER_BYTES;
        let landing = match receiver.arriving(&header) {
            Ok(landing) => landing,
            Err(reason) => {
                self.progress = Progress::Refused;
                return Err(LaneError::Violation(reason));
            }
        };
        let bytes = header.payload_bytes as usize;
        self.bulk = bytes >= LARGE_PAYLOAD || (bytes == 0 && self.bulk);
        let destination = match landing {
            Landing::Direct { pointer, operation } => Destination::Memory { pointer, operation },
            Landing::Discard => Destination::Nowhere,
            Landing::Borrow if self.end - self.start >= bytes => {
                let payload = self.start..self.start + bytes;
                self.start = payload.end;
                receiver.landed(&header, &self.staging[payload]);
                return Ok(true);
            }
            Landing::Borrow => {
                if self.scratch.len() < bytes {
                    self.scratch.resize(bytes, 0);
                }
                Destination::Scratch
            }
        };
        self.progress = Progress::Payload { header, destination, done: 0 };
        Ok(true)
    }

    /// Takes the payload's bytes out of the staging buffer and reports the payload when it is
    /// complete. False if more has to be read.
    fn parse_payload(&mut self, receiver: &mut dyn Receiver) -> bool {
        let Progress::Payload { header, destination, done } = &mut self.progress else {
            return true;
        };
        let bytes = header.payload_bytes as usize;
        let amount = (self.end - self.start).min(bytes - *done);
        let source = &self.staging[self.start..self.start + amount];
        match destination {
            Destination::Memory { pointer, .. } => {
                // SAFETY: the landing has room for the whole payload, of which `amount` bytes at
                // `done` are still missing, and is valid until reported landed or abandoned.
                unsafe { std::ptr::copy(source.as_ptr(), pointer.add(*done), amount) };
            }
            Destination::Scratch => self.scratch[*done..*done + amount].copy_from_slice(source),
            Destination::Nowhere | Destination::Abandoned => {}
        }
        self.start += amount;
        *done += amount;
        if *done < bytes {
            return false;
        }
        match destination {
            Destination::Abandoned => {}
            Destination::Scratch => receiver.landed(header, &self.scratch[..bytes]),
            Destination::Memory { .. } | Destination::Nowhere => receiver.landed(header, &[]),
        }
        self.progress = Progress::Header;
        true
    }
}
