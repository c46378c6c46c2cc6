//! Pairs of lanes and a receiver that checks what arrives.
#![allow(dead_code)] // each test binary uses a part

use std::collections::HashMap;
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use gradwire_core::{FrameKind, Header};
use gradwire_transport::{
    Doorbell, Frame, Landing, Lane, LaneError, Payload, Receiver, Segment, SharedMemoryLane,
    TcpLane, TcpTuning, tune,
};

/// Header tags that choose the landing.
pub const DIRECT: u32 = 0;
pub const BORROW: u32 = 1;
pub const DISCARD: u32 = 2;

pub const MAX_PAYLOAD: usize = 1 << 20;

pub fn tcp_streams() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (one, listener.accept().unwrap().0)
}

/// Two ends of a connection whose kernel buffers are as small as they can be.
pub fn narrow_tcp_pair() -> (TcpLane, TcpLane) {
    let (one, two) = tcp_streams();
    let tuning = TcpTuning {
        send_buffer_bytes: Some(4096),
        receive_buffer_bytes: Some(16 << 10),
        unsent_bytes: None,
        ..TcpTuning::default()
    };
    tune(&one, &tuning).unwrap();
    tune(&two, &tuning).unwrap();
    (TcpLane::new(one, 32).unwrap(), TcpLane::new(two, 32).unwrap())
}

pub fn tcp_pair() -> (TcpLane, TcpLane) {
    let (one, two) = tcp_streams();
    (TcpLane::new(one, 32).unwrap(), TcpLane::new(two, 32).unwrap())
}

pub fn shared_pair(max_payload: usize) -> (SharedMemoryLane, SharedMemoryLane) {
    let (own, own_file) = Doorbell::create().unwrap();
    let (theirs, _) = Doorbell::create().unwrap();
    drop(own);
    let (segment, file) = Segment::create(2 * (max_payload + 128)).unwrap();
    let (control, their_control) = UnixStream::pair().unwrap();
    let other = Segment::open(file).unwrap();
    let own = Doorbell::open(own_file).unwrap();
    (
        SharedMemoryLane::new(segment, true, control, theirs, max_payload).unwrap(),
        SharedMemoryLane::new(other, false, their_control, own, max_payload).unwrap(),
    )
}

/// The bytes that frame `sequence` carries.
pub fn payload_of(sequence: u64, bytes: usize) -> Vec<u8> {
    let seed = sequence.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (0..bytes as u64)
        .map(|at| (seed.wrapping_add(at.wrapping_mul(0x0101_0107)) >> 13) as u8)
        .collect()
}

pub fn header_of(sequence: u64, tag: u32, bytes: usize) -> Header {
    let mut header = Header::new(FrameKind::Data);
    header.sequence = sequence;
    header.tag = tag;
    header.payload_bytes = bytes as u32;
    header
}

/// A frame that borrows `payload`.
pub fn frame_of(sequence: u64, tag: u32, payload: &[u8]) -> Frame {
    let header = header_of(sequence, tag, payload.len()).encode();
    let payload = Payload::Borrowed { pointer: payload.as_ptr(), bytes: payload.len() };
    Frame { header, payload, operation: sequence, token: sequence }
}

/// Checks order and content of what arrives.
#[derive(Default)]
pub struct Checker {
    pub arrived: u64,
    pub landed: u64,
    /// Memory of direct landings, by sequence; stays where it is until the test ends.
    pub memory: HashMap<u64, Box<[u8]>>,
    pub refuse: Option<u64>,
}

impl Receiver for Checker {
    fn arriving(&mut self, header: &Header) -> Result<Landing, String> {
        assert_eq!(header.sequence, self.arrived, "frames arrive in order, each once");
        if self.refuse == Some(header.sequence) {
            return Err("refused by the test".into());
        }
        self.arrived += 1;
        Ok(match header.tag {
            DIRECT => {
                let room = vec![0; header.payload_bytes as usize].into_boxed_slice();
                let room = self.memory.entry(header.sequence).or_insert(room);
                Landing::Direct { pointer: room.as_mut_ptr(), operation: header.sequence }
            }
            BORROW => Landing::Borrow,
            _ => Landing::Discard,
        })
    }

    fn landed(&mut self, header: &Header, payload: &[u8]) {
        self.landed += 1;
        let expected = payload_of(header.sequence, header.payload_bytes as usize);
        match header.tag {
            DIRECT => {
                assert!(payload.is_empty());
                assert!(self.memory[&header.sequence][..] == expected[..], "direct landing");
            }
            BORROW => assert!(payload == expected, "borrowed payload"),
            _ => assert!(payload.is_empty()),
        }
    }
}

/// Sends everything and receives everything; returns the tokens that were handed back.
pub fn transfer(
    from: &mut dyn Lane,
    to: &mut dyn Lane,
    frames: Vec<Frame>,
    checker: &mut Checker,
) -> Vec<u64> {
    let total = checker.landed + frames.len() as u64;
    let mut frames = frames.into_iter().peekable();
    let mut tokens = Vec::new();
    let deadline = Instant::now() + Duration::from_secs(60);
    while checker.landed < total || from.has_unsent() {
        assert!(Instant::now() < deadline, "the transfer is stuck");
        while from.ready_to_send()
            && let Some(frame) = frames.next()
        {
            from.send(frame, &mut |token, _| tokens.push(token)).unwrap();
        }
        from.flush(&mut |token, _| tokens.push(token)).unwrap();
        to.receive(checker).unwrap();
    }
    tokens
}

/// Receives until the lane fails.
pub fn failure_of(lane: &mut dyn Lane, receiver: &mut dyn Receiver) -> LaneError {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        assert!(Instant::now() < deadline, "the lane does not fail");
        lane.descriptor_readable();
        if let Err(error) = lane.receive(receiver) {
            return error;
        }
    }
}
