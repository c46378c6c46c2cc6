//! No wake-up is lost, in whichever way the two sides sleep.

mod rig;

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use gradwire_core::Header;
use gradwire_transport::{
    Doorbell, Landing, Lane, Poller, Receiver, Segment, SharedMemoryLane, Spin, SpinStep, TcpLane,
};
use rig::*;

const ROUNDS: u64 = 20_000;
/// Longer than any sleep that a wake-up ends: a sleep of this length has lost one.
const TOO_LONG: Duration = Duration::from_secs(5);

#[derive(Default)]
struct Count(u64);

impl Receiver for Count {
    fn arriving(&mut self, _: &Header) -> Result<Landing, String> {
        Ok(Landing::Borrow)
    }
    fn landed(&mut self, _: &Header, _: &[u8]) {
        self.0 += 1;
    }
}

/// One side: its lanes (the traffic goes over the first) and its poller.
struct Side {
    lanes: Vec<Box<dyn Lane>>,
    poller: Poller,
    count: Count,
    /// The far end of the other side's idle connection.
    idle: Option<TcpLane>,
}

impl Side {
    fn new(doorbell: Doorbell, lanes: Vec<Box<dyn Lane>>) -> Side {
        let mut poller = Poller::new(Arc::new(doorbell)).unwrap();
        for (lane, key) in lanes.iter().zip(0..) {
            poller.add(&**lane, key).unwrap();
        }
        Side { lanes, poller, count: Count::default(), idle: None }
    }

    fn sleep(&mut self) {
        for (lane, key) in self.lanes.iter().zip(0..) {
            self.poller.want_write(&**lane, key, lane.has_unsent()).unwrap();
        }
        let start = Instant::now();
        let lanes = &self.lanes;
        let woken = self
            .poller
            .sleep(2 * TOO_LONG, &mut || lanes.iter().any(|lane| lane.actionable()))
            .unwrap();
        assert!(start.elapsed() < TOO_LONG, "a wake-up was lost");
        for ready in woken.ready.iter().filter(|ready| ready.readable) {
            self.lanes[ready.key as usize].descriptor_readable();
        }
    }

    /// Receives, sleeping whenever there is nothing, until `total` frames have come.
    fn receive(&mut self, total: u64) {
        while self.count.0 < total {
            let mut moved = self.lanes[0].flush(&mut |_, _| {}).unwrap();
            moved |= self.lanes[0].receive(&mut self.count).unwrap();
            if !moved {
                self.sleep();
            }
        }
    }

    fn send(&mut self, sequence: u64, payload: &[u8]) {
        while !self.lanes[0].ready_to_send() {
            if !self.lanes[0].flush(&mut |_, _| {}).unwrap() {
                self.sleep();
            }
        }
        self.lanes[0].send(frame_of(sequence, BORROW, payload), &mut |_, _| {}).unwrap();
        self.lanes[0].flush(&mut |_, _| {}).unwrap();
    }
}

/// Two sides with a lane in shared memory. A side that shall sleep in `epoll_wait` gets an idle
/// TCP lane besides.
fn shared_sides(ring_bytes: usize, epoll: [bool; 2]) -> (Side, Side) {
    let (one_bell, one_file) = Doorbell::create().unwrap();
    let (two_bell, two_file) = Doorbell::create().unwrap();
    let (segment, file) = Segment::create(ring_bytes).unwrap();
    let (one_control, two_control) = UnixStream::pair().unwrap();
    let two_segment = Segment::open(file).unwrap();
    let to_two = Doorbell::open(two_file).unwrap();
    let to_one = Doorbell::open(one_file).unwrap();
    let one = SharedMemoryLane::new(segment, true, one_control, to_two, 1000).unwrap();
    let two = SharedMemoryLane::new(two_segment, false, two_control, to_one, 1000).unwrap();
    let mut lanes: [Vec<Box<dyn Lane>>; 2] = [vec![Box::new(one)], vec![Box::new(two)]];
    let mut idle = [None, None];
    for side in (0..2).filter(|side| epoll[*side]) {
        let (near, far) = tcp_pair();
        lanes[side].push(Box::new(near));
        idle[1 - side] = Some(far);
    }
    let [one, two] = lanes;
    let (mut one, mut two) = (Side::new(one_bell, one), Side::new(two_bell, two));
    [one.idle, two.idle] = idle;
    (one, two)
}

fn tcp_sides() -> (Side, Side) {
    let (one, two) = tcp_pair();
    let side = |lane| Side::new(Doorbell::create().unwrap().0, vec![Box::new(lane)]);
    (side(one), side(two))
}

fn ping_pong((mut one, mut two): (Side, Side)) {
    thread::scope(|scope| {
        scope.spawn(move || {
            for round in 0..ROUNDS {
                two.receive(round + 1);
                two.send(round, &[1; 10]);
            }
            two
        });
        for round in 0..ROUNDS {
            one.send(round, &[1; 10]);
            one.receive(round + 1);
        }
    });
}

#[test]
fn ping_pong_between_sleepers_in_shared_memory() {
    for epoll in [[false, false], [false, true], [true, false], [true, true]] {
        ping_pong(shared_sides(1 << 16, epoll));
    }
}

#[test]
fn ping_pong_between_sleepers_over_tcp() {
    ping_pong(tcp_sides());
}

#[test]
fn a_sender_that_waits_for_room_is_woken() {
    for epoll in [[false, false], [false, true], [true, false], [true, true]] {
        let (mut one, mut two) = shared_sides(4096, epoll);
        thread::scope(|scope| {
            scope.spawn(move || {
                two.receive(ROUNDS);
                two.send(0, &[]);
                two
            });
            let payload = [1; 1000];
            for round in 0..ROUNDS {
                one.send(round, &payload);
            }
            one.receive(1);
        });
    }
}

#[test]
fn wakers_end_every_kind_of_sleep() {
    for epoll in [false, true] {
        let (mut side, _peer) = shared_sides(4096, [epoll, false]);
        let waker = side.poller.waker();
        let (report, woken) = std::sync::mpsc::channel();
        thread::scope(|scope| {
            scope.spawn(move || {
                for _ in 0..ROUNDS {
                    waker.wake();
                    woken.recv_timeout(TOO_LONG).expect("a wake-up was lost");
                }
            });
            for _ in 0..ROUNDS {
                while !side.poller.sleep(2 * TOO_LONG, &mut || false).unwrap().by_waker {}
                report.send(()).unwrap();
            }
        });
    }
}

#[test]
fn a_sleeper_notices_that_its_peer_is_gone() {
    for epoll in [false, true] {
        let (mut side, peer) = shared_sides(4096, [epoll, false]);
        let leaver = thread::spawn(move || {
            thread::sleep(Duration::from_millis(20));
            drop(peer.lanes);
        });
        let start = Instant::now();
        while side.lanes[0].receive(&mut side.count).is_ok() {
            side.sleep();
            assert!(start.elapsed() < TOO_LONG);
        }
        leaver.join().unwrap();
    }
}

#[test]
fn a_sleep_ends_with_its_time() {
    for epoll in [false, true] {
        let (mut side, _peer) = shared_sides(4096, [epoll, false]);
        let start = Instant::now();
        side.poller.sleep(Duration::from_millis(120), &mut || false).unwrap();
        assert!(start.elapsed() >= Duration::from_millis(115), "{:?}", start.elapsed());
    }
}

#[test]
fn waiting_ends_in_sleep_and_sooner_when_waits_are_long() {
    for ranks in [1, 10_000] {
        let mut spin = Spin::new(ranks);
        let mut steps_of_a_wait = || {
            let steps = (0..1_000_000).take_while(|_| spin.step() == SpinStep::Continue).count();
            thread::sleep(Duration::from_millis(1));
            spin.progress();
            steps
        };
        let first = steps_of_a_wait();
        let later = (0..6).map(|_| steps_of_a_wait()).last().unwrap();
        assert!(first < 1_000_000, "{ranks} ranks: a wait never ends");
        assert!(ranks == 1 || later < first / 4, "{ranks} ranks: {first}, then {later} steps");
    }
}
