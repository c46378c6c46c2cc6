//! How fast frames travel between two processes of this machine, over each kind of lane.
//!
//! ```text
//! cargo run --release --example lane_speed [tcp|shm] [ring KiB] [TCP_NOTSENT_LOWAT KiB]
//! ```
//!
//! Prints one-way and two-way throughput for several frame sizes (two-way counts both directions),
//! the time of 64 MiB each way, and the one-way latency of a bare header, beside the speed at which
//! this machine copies memory.

use std::error::Error;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use gradwire_core::{FrameKind, HEADER_BYTES, Header};
use gradwire_transport::{
    Doorbell, Frame, Landing, Lane, Payload, Receiver, Segment, SharedMemoryLane, TcpLane,
    TcpTuning, tune,
};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const TENSOR_BYTES: usize = 64 << 20;
const FRAME_BYTES: [usize; 4] = [64 << 10, 128 << 10, 256 << 10, 512 << 10];
const REPEATS: usize = 5;
const ROUND_TRIPS: usize = 20_000;
const MAX_PAYLOAD: usize = 512 << 10;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("peer") => peer(&arguments[1..]),
        first => {
            let number = |at: usize, default: usize| {
                arguments.get(at).and_then(|text| text.parse().ok()).unwrap_or(default)
            };
            print_copy_speed();
            if first != Some("shm") {
                start_tcp(number(2, 512) << 10)?;
            }
            if first != Some("tcp") {
                start_shared_memory(number(1, 2048) << 10)?;
            }
            Ok(())
        }
    }
}

fn start_tcp(unsent_bytes: usize) -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let theirs = TcpStream::connect(listener.local_addr()?)?;
    let (ours, _) = listener.accept()?;
    let mut child = spawn("tcp", &[theirs.as_raw_fd()], unsent_bytes)?;
    drop(theirs);
    Bench::new(tcp_lane(ours, unsent_bytes)?, true).run()?;
    child.wait()?;
    Ok(())
}

fn tcp_lane(stream: TcpStream, unsent_bytes: usize) -> Result<Box<dyn Lane>> {
    let unsent_bytes = Some(u32::try_from(unsent_bytes)?).filter(|bytes| *bytes > 0);
    tune(&stream, &TcpTuning { unsent_bytes, ..TcpTuning::default() })?;
    Ok(Box::new(TcpLane::new(stream, 32)?))
}

fn start_shared_memory(ring_bytes: usize) -> Result<()> {
    let (segment, segment_file) = Segment::create(ring_bytes)?;
    let (_own, own_file) = Doorbell::create()?;
    let (their_bell, _) = Doorbell::create()?;
    let (ours, theirs) = UnixStream::pair()?;
    let descriptors = [segment_file.as_raw_fd(), theirs.as_raw_fd(), own_file.as_raw_fd()];
    let mut child = spawn("shm", &descriptors, 0)?;
    drop(theirs);
    let lane = SharedMemoryLane::new(segment, true, ours, their_bell, MAX_PAYLOAD)?;
    Bench::new(Box::new(lane), true).run()?;
    child.wait()?;
    Ok(())
}

fn spawn(wire: &str, descriptors: &[RawFd], option: usize) -> Result<std::process::Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["peer", wire, &option.to_string()]).stdout(Stdio::null());
    for descriptor in descriptors {
        // SAFETY: the caller holds the descriptors open until the child runs.
        let descriptor = unsafe { std::os::fd::BorrowedFd::borrow_raw(*descriptor) };
        rustix::io::fcntl_setfd(descriptor, rustix::io::FdFlags::empty())?;
        command.arg(descriptor.as_raw_fd().to_string());
    }
    Ok(command.spawn()?)
}

fn peer(arguments: &[String]) -> Result<()> {
    let option: usize = arguments[1].parse()?;
    let mut descriptors = Vec::new();
    for number in &arguments[2..] {
        // SAFETY: the parent has left exactly these descriptors open for this process.
        descriptors.push(unsafe { OwnedFd::from_raw_fd(number.parse()?) });
    }
    let mut descriptors = descriptors.into_iter();
    let mut next = || descriptors.next().ok_or("too few descriptors");
    let lane: Box<dyn Lane> = if arguments[0] == "tcp" {
        tcp_lane(TcpStream::from(next()?), option)?
    } else {
        let segment = Segment::open(next()?)?;
        let control = UnixStream::from(next()?);
        let bell = Doorbell::open(next()?)?;
        Box::new(SharedMemoryLane::new(segment, false, control, bell, MAX_PAYLOAD)?)
    };
    Bench::new(lane, false).run()
}

/// Counts what arrives and puts it into `target` one frame after the other.
struct Sink {
    target: Vec<u8>,
    borrow: bool,
    position: usize,
    bytes: usize,
    bare: usize,
}

impl Receiver for Sink {
    fn arriving(&mut self, header: &Header) -> std::result::Result<Landing, String> {
        let bytes = header.payload_bytes as usize;
        if self.borrow {
            return Ok(Landing::Borrow);
        }
        if self.position + bytes > self.target.len() {
            self.position = 0;
        }
        let pointer = self.target[self.position..].as_mut_ptr();
        self.position += bytes;
        Ok(Landing::Direct { pointer, operation: 0 })
    }

    fn landed(&mut self, header: &Header, _: &[u8]) {
        self.bytes += header.payload_bytes as usize;
        self.bare += usize::from(header.payload_bytes == 0);
    }
}

struct Bench {
    lane: Box<dyn Lane>,
    initiator: bool,
    source: Vec<u8>,
    sink: Sink,
    trips: usize,
    to_receive: usize,
}

impl Bench {
    fn new(lane: Box<dyn Lane>, initiator: bool) -> Self {
        let target = vec![1; TENSOR_BYTES];
        let sink = Sink { target, borrow: false, position: 0, bytes: 0, bare: 0 };
        Bench { lane, initiator, source: vec![2; TENSOR_BYTES], sink, trips: 0, to_receive: 0 }
    }

    fn run(&mut self) -> Result<()> {
        println!("\n{:?}", self.lane.wire());
        println!(
            "{:>8} {:>12} {:>12} {:>12} {:>22}",
            "frame", "one way", "two ways", "borrowed", "64 MiB each way"
        );
        for frame in FRAME_BYTES {
            let one = self.throughput(frame, self.initiator, !self.initiator)?;
            let two = self.throughput(frame, true, true)?;
            self.sink.borrow = true;
            let borrowed = self.throughput(frame, true, true)?;
            self.sink.borrow = false;
            let rate = |time: Duration, tensors: usize| {
                (tensors * TENSOR_BYTES) as f64 / time.as_secs_f64() / 1e9
            };
            println!(
                "{:>6} K {:>7.2} GB/s {:>7.2} GB/s {:>7.2} GB/s {:>14.1} / {:.1} ms",
                frame >> 10,
                rate(one, 1),
                rate(two, 2),
                rate(borrowed, 2),
                two.as_secs_f64() * 1e3,
                borrowed.as_secs_f64() * 1e3
            );
        }
        let start = Instant::now();
        for _ in 0..ROUND_TRIPS {
            self.round_trip()?;
        }
        let one_way = start.elapsed() / (2 * ROUND_TRIPS as u32);
        println!("a bare header takes {one_way:?} one way");
        Ok(())
    }

    /// The best time of a few repetitions.
    fn throughput(&mut self, frame: usize, sends: bool, receives: bool) -> Result<Duration> {
        let mut best = Duration::MAX;
        for _ in 0..REPEATS {
            self.round_trip()?;
            let start = Instant::now();
            self.exchange(frame, sends, receives)?;
            self.round_trip()?;
            best = best.min(start.elapsed());
        }
        Ok(best)
    }

    fn exchange(&mut self, frame: usize, sends: bool, receives: bool) -> Result<()> {
        // The first frames may have come together with the end of the last round trip.
        self.to_receive += if receives { TENSOR_BYTES } else { 0 };
        let to_send = if sends { TENSOR_BYTES } else { 0 };
        let (mut queued, mut sent) = (0, 0);
        let mut header = Header::new(FrameKind::Data);
        header.payload_bytes = frame as u32;
        let header = header.encode();
        while sent < to_send || self.sink.bytes < self.to_receive {
            let mut moved = false;
            while queued < to_send && self.lane.ready_to_send() {
                let pointer = self.source[queued..queued + frame].as_ptr();
                let payload = Payload::Borrowed { pointer, bytes: frame };
                let next = Frame { header, payload, operation: 0, token: 0 };
                self.lane.send(next, &mut |_, _| sent += frame)?;
                queued += frame;
                moved = true;
            }
            moved |= self.lane.flush(&mut |_, _| sent += frame)?;
            moved |= self.lane.receive(&mut self.sink)?;
            if !moved {
                // Others may need the core that the peer is to run on.
                rustix::thread::sched_yield();
            }
        }
        Ok(())
    }

    fn round_trip(&mut self) -> Result<()> {
        self.trips += 1;
        if self.initiator {
            self.send_bare()?;
        }
        while self.sink.bare < self.trips {
            self.lane.receive(&mut self.sink)?;
        }
        if !self.initiator {
            self.send_bare()?;
        }
        Ok(())
    }

    fn send_bare(&mut self) -> Result<()> {
        let header: [u8; HEADER_BYTES] = Header::new(FrameKind::Ping).encode();
        let frame = Frame { header, payload: Payload::Empty, operation: 0, token: 0 };
        self.lane.send(frame, &mut |_, _| {})?;
        while self.lane.has_unsent() {
            self.lane.flush(&mut |_, _| {})?;
        }
        Ok(())
    }
}

/// One pass over 64 MiB, into a window of 1 MiB as a ring is, and into 64 MiB.
fn print_copy_speed() {
    let source = vec![1u8; TENSOR_BYTES];
    let mut target = vec![1u8; TENSOR_BYTES];
    for window in [1 << 20, TENSOR_BYTES] {
        let mut best = Duration::MAX;
        for _ in 0..REPEATS {
            let start = Instant::now();
            for at in (0..TENSOR_BYTES).step_by(256 << 10) {
                let to = at % window;
                target[to..to + (256 << 10)].copy_from_slice(&source[at..at + (256 << 10)]);
            }
            std::hint::black_box(&mut target);
            best = best.min(start.elapsed());
        }
        let rate = TENSOR_BYTES as f64 / best.as_secs_f64() / 1e9;
        println!("one core copies 64 MiB into {:>2} MiB at {rate:.2} GB/s", window >> 20);
    }
}
