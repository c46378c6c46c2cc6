//! Connections of strangers: they cost themselves, never the job.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr as TcpAddress, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::parties::{Party, Store, config, exchange, lanes};
use gradwire_transport::Endpoint;
use gradwire_transport::Wire;
use gradwire_transport::handshake::{Hello, Initiator, Secret};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

const GARBAGE: usize = 10_000;
/// Strangers that hold their connection open at once: more than the lobby lets in.
const HELD: usize = 400;

trait Stream: Read + Write + Send {
    fn limit(&self, patience: Duration);
}

impl Stream for TcpStream {
    fn limit(&self, patience: Duration) {
        self.set_read_timeout(Some(patience)).unwrap();
    }
}

impl Stream for UnixStream {
    fn limit(&self, patience: Duration) {
        self.set_read_timeout(Some(patience)).unwrap();
    }
}

/// Connects as a stranger would.
fn knock(endpoint: &Endpoint) -> std::io::Result<Box<dyn Stream>> {
    match &endpoint.local_name {
        Some(name) => {
            let address = UnixAddress::from_abstract_name(name.as_bytes())?;
            Ok(Box::new(UnixStream::connect_addr(&address)?))
        }
        None => {
            let address = endpoint.addresses[0];
            let address = TcpAddress::new(address.ip, address.port);
            Ok(Box::new(TcpStream::connect_timeout(&address, Duration::from_secs(5))?))
        }
    }
}

/// Sends something that is no handshake; errors only say that the lobby has hung up already.
fn babble(stream: &mut dyn Stream, number: usize, random: &mut SmallRng) {
    let mut bytes = vec![0; random.random_range(1..2000)];
    random.fill(&mut bytes[..]);
    let _ = match number % 6 {
        0 => stream.write(&bytes),
        1 => stream.write(b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n"),
        2 => stream.write(b"G"),
        3 => stream.write(&prefaced(&bytes)),
        4 => stream.write(&strange_hello(random)),
        _ => Ok(0),
    };
}

/// Begins like a real first message and ends in garbage.
fn prefaced(garbage: &[u8]) -> Vec<u8> {
    let mut message = first_message(&Secret::new([7; 32]));
    let from = message.len() - garbage.len().min(150);
    let length = message.len() - from;
    message[from..].copy_from_slice(&garbage[..length]);
    message
}

fn strange_hello(random: &mut SmallRng) -> Vec<u8> {
    first_message(&Secret::new(random.random()))
}

fn first_message(secret: &Secret) -> Vec<u8> {
    let hello = Hello {
        initiator: 1,
        acceptor: 0,
        world_size: 40,
        session: 1,
        attempt: 1,
        lane: 0,
        lanes: 2,
        wire: Wire::Tcp,
        host: "stranger".to_owned(),
    };
    Initiator::new(secret, &hello).take_outgoing()
}

/// While 10,000 strangers come, ranks connect one after the other and exchange frames.
fn storm(shared_memory: bool) {
    const RANKS: u32 = 2_000;
    let store = Store::new();
    let target = Party::start(config(0, RANKS, &store), shared_memory, &store);
    let (endpoint, over) = (target.lobby.endpoint().clone(), AtomicBool::new(false));
    let started = Instant::now();
    let connected = thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = SmallRng::seed_from_u64(1);
            let mut held = VecDeque::new();
            for number in 0..GARBAGE {
                if let Ok(mut stream) = knock(&endpoint) {
                    babble(&mut *stream, number, &mut random);
                    held.push_back(stream);
                }
                if held.len() > HELD {
                    held.pop_front();
                }
            }
            over.store(true, Ordering::Release);
        });
        let mut connected = 0;
        for rank in 1..RANKS {
            let party = Party::start(config(rank, RANKS, &store), shared_memory, &store);
            party.lobby.connect(0);
            let count = if shared_memory { 1 } else { 2 };
            let mut theirs = lanes(&party.lobby, 0, count);
            let mut ours = lanes(&target.lobby, rank, count);
            let ours = ours.get_mut(&0).unwrap();
            exchange(theirs.get_mut(&0).unwrap().as_mut(), ours.as_mut(), 1);
            connected += 1;
            if over.load(Ordering::Acquire) {
                break;
            }
        }
        connected
    });
    assert!((5..RANKS - 1).contains(&connected), "{connected} ranks connected during the storm");
    assert!(target.lobby.poll().is_none(), "strangers cause no events");
    assert!(started.elapsed() < Duration::from_secs(120), "{:?}", started.elapsed());
}

#[test]
fn ten_thousand_strangers_do_not_keep_ranks_from_connecting_over_tcp() {
    storm(false);
}

#[test]
fn ten_thousand_strangers_do_not_keep_ranks_from_connecting_locally() {
    storm(true);
}

/// Whether the lobby has closed the connection within `patience`.
fn is_closed(stream: &mut dyn Stream, patience: Duration) -> bool {
    stream.limit(patience);
    match stream.read(&mut [0]) {
        Ok(bytes) => bytes == 0,
        Err(error) => !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
    }
}

#[test]
fn the_oldest_strangers_make_room_and_the_others_have_five_seconds() {
    for shared_memory in [false, true] {
        let store = Store::new();
        let target = Party::start(config(0, 2, &store), shared_memory, &store);
        let mut strangers: Vec<_> =
            (0..300).map(|_| knock(target.lobby.endpoint()).unwrap()).collect();
        for oldest in &mut strangers[..300 - 256] {
            assert!(is_closed(&mut **oldest, Duration::from_secs(2)));
        }
        assert!(!is_closed(&mut *strangers[299], Duration::from_millis(100)));
        for stranger in &mut strangers[44..] {
            assert!(is_closed(&mut **stranger, Duration::from_secs(8)));
        }
    }
}

#[test]
fn a_replayed_hello_gets_nowhere() {
    let store = Store::new();
    let target = Party::start(config(0, 40, &store), false, &store);
    let recorded = first_message(&Secret::new([7; 32]));
    let mut replays: Vec<_> = (0..300)
        .map(|_| {
            let mut stream = knock(target.lobby.endpoint()).unwrap();
            let _ = stream.write(&recorded);
            stream
        })
        .collect();
    let peer = Party::start(config(1, 40, &store), false, &store);
    peer.lobby.connect(0);
    assert_eq!(lanes(&peer.lobby, 0, 2).len(), 2);
    assert_eq!(lanes(&target.lobby, 1, 2).len(), 2);
    for replay in &mut replays {
        replay.limit(Duration::from_secs(8));
        let mut answer = Vec::new();
        let _ = replay.read_to_end(&mut answer);
        assert!(answer.len() <= 210, "only the welcome, which says nothing without the secret");
    }
    assert!(target.lobby.poll().is_none());
}
