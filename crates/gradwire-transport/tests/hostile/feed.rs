//! Feeds arbitrary bytes to a lane's receiving half. Shared by the seeded test and the fuzz targets.

use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use gradwire_core::Header;
use gradwire_transport::{
    Doorbell, Landing, Lane, LaneError, Receiver, Segment, SharedMemoryLane, TcpLane,
};

const RING_BYTES: usize = 8192;
/// Offset of the prologue's second pair of ring indices: what the initiator receives from.
const HEAD_OFFSET: u64 = 512;
const DATA_OFFSET: u64 = 4096 + RING_BYTES as u64;

/// Takes every landing in turn, chosen by the header, and checks the calls it gets.
#[derive(Default)]
struct Judge {
    announced: Option<Header>,
    memory: Vec<u8>,
    frames: usize,
}

impl Receiver for Judge {
    fn arriving(&mut self, header: &Header) -> Result<Landing, String> {
        assert!(self.announced.is_none(), "two headers without a landing");
        self.frames += 1;
        self.announced = Some(*header);
        match header.tag % 4 {
            0 => {
                self.memory.clear();
                self.memory.resize(header.payload_bytes as usize, 0);
                Ok(Landing::Direct { pointer: self.memory.as_mut_ptr(), operation: 1 })
            }
            1 => Ok(Landing::Borrow),
            2 => Ok(Landing::Discard),
            _ if header.edge % 8 == 7 => Err("refused".into()),
            _ => Ok(Landing::Borrow),
        }
    }

    fn landed(&mut self, header: &Header, payload: &[u8]) {
        assert_eq!(self.announced.take(), Some(*header));
        let borrowed = header.tag % 4 == 1 || header.tag % 4 == 3;
        assert_eq!(payload.len(), if borrowed { header.payload_bytes as usize } else { 0 });
        std::hint::black_box(payload.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte)));
    }
}

/// Sends `bytes` to a TCP lane, then hangs up. Returns the number of frames that came out.
pub fn feed_tcp(bytes: &[u8]) -> usize {
    // A pair of Unix sockets stands for the connection: a lane reads both in the same way.
    let (mut raw, stream) = UnixStream::pair().expect("a socket pair");
    let stream = std::net::TcpStream::from(OwnedFd::from(stream));
    let mut lane = TcpLane::from_tuned(stream, 32).expect("a lane");
    let mut judge = Judge::default();
    for piece in bytes.chunks(1 + bytes.len() / 3) {
        raw.write_all(piece).expect("room for a small input");
        if lane.receive(&mut judge).is_err() {
            return judge.frames;
        }
    }
    drop(raw);
    while lane.receive(&mut judge).is_ok() {}
    judge.frames
}

/// Lets a peer write `bytes` into a ring: an index, then the ring's content. Returns the number
/// of frames that came out.
pub fn feed_ring(bytes: &[u8]) -> usize {
    let (segment, file) = Segment::create(RING_BYTES).expect("a segment");
    let (control, peer) = UnixStream::pair().expect("a socket pair");
    let (bell, _) = Doorbell::create().expect("a doorbell");
    let mut lane = SharedMemoryLane::new(segment, true, control, bell, 1000).expect("a lane");
    drop(peer);
    let (index, data) = bytes.split_at(bytes.len().min(8));
    rustix::io::pwrite(&file, index, HEAD_OFFSET).expect("the index is written");
    let data = &data[..data.len().min(RING_BYTES)];
    rustix::io::pwrite(&file, data, DATA_OFFSET).expect("the ring is written");
    let mut judge = Judge::default();
    lane.check_closed();
    for _ in 0..16 {
        match lane.receive(&mut judge) {
            Ok(_) => continue,
            Err(LaneError::Io(error)) => panic!("no system call is involved: {error}"),
            Err(_) => break,
        }
    }
    judge.frames
}
