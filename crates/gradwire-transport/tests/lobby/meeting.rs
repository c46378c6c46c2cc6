//! Ranks of one job find each other, or learn why not.

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use crate::parties::{
    PATIENCE, Party, Store, config, exchange, lanes, loopback, next_event, silence,
};
use gradwire_transport::{Address, Directory, Endpoint, FailureKind, Lobby, LobbyEvent, Wire};

/// Both ranks connect at the same time; `rounds` times.
fn connect_from_both_sides(rounds: usize, shared_memory: bool, expected_lanes: u16, wire: Wire) {
    for round in 0..rounds {
        let store = Store::new();
        let start = |rank| {
            let mut config = config(rank, 2, &store);
            config.lanes = 4;
            Party::start(config, shared_memory, &store)
        };
        let (low, high) = (start(0), start(1));
        low.lobby.connect(1);
        if round % 2 == 1 {
            std::thread::sleep(Duration::from_micros(100 * (round as u64 % 20)));
        }
        high.lobby.connect(0);
        let mut from_low = lanes(&low.lobby, 1, expected_lanes);
        let mut from_high = lanes(&high.lobby, 0, expected_lanes);
        for index in 0..expected_lanes {
            let (left, right) =
                (from_low.get_mut(&index).unwrap(), from_high.get_mut(&index).unwrap());
            assert_eq!((left.wire(), right.wire()), (wire, wire));
            exchange(left.as_mut(), right.as_mut(), round as u64 * 100 + u64::from(index));
            exchange(right.as_mut(), left.as_mut(), round as u64 * 100 + u64::from(index));
        }
        low.lobby.connect(1);
        high.lobby.connect(0);
        if round == 0 {
            silence(&low.lobby);
            silence(&high.lobby);
        }
        low.end();
        high.end();
    }
}

#[test]
fn two_ranks_that_connect_to_each_other_share_one_session_over_tcp() {
    connect_from_both_sides(60, false, 4, Wire::Tcp);
}

#[test]
fn two_ranks_that_connect_to_each_other_share_one_lane_of_shared_memory() {
    connect_from_both_sides(60, true, 1, Wire::SharedMemory);
}

#[test]
fn one_side_is_enough() {
    for (initiator, acceptor) in [(0, 1), (1, 0)] {
        for shared_memory in [false, true] {
            let store = Store::new();
            let parties =
                [0, 1].map(|rank| Party::start(config(rank, 2, &store), shared_memory, &store));
            parties[initiator].lobby.connect(acceptor as u32);
            let count = if shared_memory { 1 } else { 2 };
            let mut left = lanes(&parties[initiator].lobby, acceptor as u32, count);
            let mut right = lanes(&parties[acceptor].lobby, initiator as u32, count);
            for index in 0..count {
                let right = right.get_mut(&index).unwrap();
                exchange(left.get_mut(&index).unwrap().as_mut(), right.as_mut(), 1);
            }
        }
    }
}

#[test]
fn a_full_mesh_has_one_session_for_each_pair() {
    const RANKS: u32 = 8;
    let store = Store::new();
    let parties: Vec<Party> = (0..RANKS)
        .map(|rank| Party::start(config(rank, RANKS, &store), rank % 2 == 0, &store))
        .collect();
    for party in &parties {
        for peer in (0..RANKS).filter(|peer| *peer != party.rank) {
            party.lobby.connect(peer);
        }
    }
    for party in &parties {
        // Even ranks share memory among themselves, one lane; the other pairs have two over TCP.
        let local = if party.rank % 2 == 0 { 3 } else { 0 };
        let mut seen = Vec::new();
        for _ in 0..local + 2 * (7 - local) {
            match next_event(&party.lobby, PATIENCE) {
                Some(LobbyEvent::Connected { peer, index, .. }) => seen.push((peer, index)),
                other => panic!("rank {}: {other:?} after {seen:?}", party.rank),
            }
        }
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), local + 2 * (7 - local));
    }
    for party in &parties {
        assert!(party.lobby.poll().is_none(), "rank {} has one event too many", party.rank);
    }
}

fn failure(lobby: &Lobby, peer: u32) -> (FailureKind, String) {
    match next_event(lobby, PATIENCE) {
        Some(LobbyEvent::Failed { peer: failed, kind, reason }) => {
            assert_eq!(failed, peer);
            (kind, reason)
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_process_that_has_ended_is_noticed_at_once() {
    for shared_memory in [false, true] {
        let store = Store::new();
        let living = Party::start(config(0, 2, &store), shared_memory, &store);
        Party::start(config(1, 2, &store), shared_memory, &store).end();
        let started = Instant::now();
        living.lobby.connect(1);
        let (kind, reason) = failure(&living.lobby, 1);
        assert_eq!(kind, FailureKind::Refused, "{reason}");
        assert!(reason.contains("rank 1 on "), "{reason}");
        assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    }
}

#[test]
fn an_address_that_refuses_is_passed_over() {
    let store = Store::new();
    let left = Party::start(config(0, 2, &store), false, &store);
    let right = Party::start(config(1, 2, &store), false, &store);
    let mut endpoint = right.lobby.endpoint().clone();
    endpoint.addresses.insert(0, closed_address());
    store.publish(&endpoint);
    left.lobby.connect(1);
    assert!(lanes(&left.lobby, 1, 1).contains_key(&0));
}

/// Where nobody listens.
fn closed_address() -> Address {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    Address { ip: address.ip(), port: address.port(), speed_mbits: 0 }
}

#[test]
fn an_interface_that_does_not_work_costs_its_lanes_only() {
    let store = Store::new();
    let mut two = config(0, 2, &store);
    two.interfaces = vec![loopback("lo", "127.0.0.1"), loopback("lo2", "127.0.0.2")];
    two.lanes = 4;
    two.connect_timeout = Duration::from_secs(1);
    let left = Party::start(two, false, &store);
    let mut other = config(1, 2, &store);
    other.interfaces = vec![loopback("lo", "127.0.0.1"), loopback("lo2", "127.0.0.2")];
    let right = Party::start(other, false, &store);
    let mut endpoint = right.lobby.endpoint().clone();
    endpoint.addresses[1] = closed_address();
    store.publish(&endpoint);
    left.lobby.connect(1);
    let mut left_lanes = lanes(&left.lobby, 1, 2);
    let mut right_lanes = lanes(&right.lobby, 0, 2);
    for index in [0, 2] {
        let right = right_lanes.get_mut(&index).unwrap();
        exchange(left_lanes.get_mut(&index).unwrap().as_mut(), right.as_mut(), 5);
    }
    silence(&left.lobby);
}

#[test]
fn every_interface_has_a_lane() {
    let store = Store::new();
    let start = |rank| {
        let mut config = config(rank, 2, &store);
        config.lanes = 1;
        config.interfaces =
            vec![loopback("lo", "127.0.0.1"), loopback("b", "127.0.0.2"), loopback("c", "::1")];
        Party::start(config, false, &store)
    };
    let (left, right) = (start(0), start(1));
    left.lobby.connect(1);
    assert_eq!(lanes(&left.lobby, 1, 2).len(), 2, "two interfaces have IPv4");
    assert_eq!(lanes(&right.lobby, 0, 2).len(), 2);
}

#[test]
fn a_peer_that_does_not_answer_is_given_up_in_time() {
    let mute = TcpListener::bind("127.0.0.1:0").unwrap();
    let store = Store::new();
    let mut patient = config(0, 2, &store);
    patient.connect_timeout = Duration::from_millis(700);
    let party = Party::start(patient, false, &store);
    let port = mute.local_addr().unwrap().port();
    let mut endpoint = party.lobby.endpoint().clone();
    endpoint.rank = 1;
    endpoint.addresses[0].port = port;
    store.publish(&endpoint);
    let started = Instant::now();
    party.lobby.connect(1);
    let (kind, reason) = failure(&party.lobby, 1);
    assert_eq!(kind, FailureKind::TimedOut, "{reason}");
    assert!(reason.contains(&format!("127.0.0.1:{port}")), "{reason}");
    assert!((700..2500).contains(&started.elapsed().as_millis()), "{:?}", started.elapsed());
}

#[test]
fn ranks_that_do_not_belong_together_are_told_why() {
    type Change = fn(&mut gradwire_transport::LobbyConfig);
    let table: [(Change, &str); 3] = [
        (|config| config.secret = [9; 32], "secret"),
        (|config| config.world_size = 3, "this job has 2 ranks, not 3"),
        (|config| config.session = 77, "another session"),
    ];
    for shared_memory in [false, true] {
        for (change, expected) in table {
            let store = Store::new();
            let right = Party::start(config(1, 2, &store), shared_memory, &store);
            let mut changed = config(0, 2, &store);
            change(&mut changed);
            let left = Party::start(changed, shared_memory, &store);
            left.lobby.connect(1);
            let (kind, reason) = failure(&left.lobby, 1);
            assert_eq!(kind, FailureKind::Rejected, "{reason}");
            assert!(reason.contains(expected), "{reason}");
            assert!(right.lobby.poll().is_none());
        }
    }
}

#[test]
fn an_endpoint_of_another_rank_behind_the_published_address_is_noticed() {
    let store = Store::new();
    let left = Party::start(config(0, 3, &store), false, &store);
    let right = Party::start(config(2, 3, &store), false, &store);
    let endpoint = Endpoint { rank: 1, ..right.lobby.endpoint().clone() };
    store.publish(&endpoint);
    left.lobby.connect(1);
    let (kind, reason) = failure(&left.lobby, 1);
    assert_eq!(kind, FailureKind::Rejected);
    assert!(reason.contains("this is rank 2, not 1"), "{reason}");
}

#[test]
fn a_rank_that_has_been_started_twice_is_rejected() {
    let store = Store::new();
    let first = Party::start(config(0, 2, &store), false, &store);
    let peer = Party::start(config(1, 2, &store), false, &store);
    first.lobby.connect(1);
    lanes(&first.lobby, 1, 2);
    lanes(&peer.lobby, 0, 2);
    let second = Party::start(config(0, 2, &store), false, &store);
    second.lobby.connect(1);
    let (kind, reason) = failure(&second.lobby, 1);
    assert_eq!(kind, FailureKind::Rejected);
    assert!(reason.contains("must not start twice"), "{reason}");
    silence(&peer.lobby);
}

#[test]
fn an_endpoint_that_cannot_be_found_or_read_is_an_error() {
    let store = Store::new();
    let party = Party::start(config(0, 4, &store), false, &store);
    store.publish_bytes(2, b"{}".to_vec());
    store.publish_bytes(3, party.lobby.endpoint().encode());
    for (peer, expected) in
        [(1, "not published"), (2, "malformed"), (3, "that of rank 0"), (0, "peer"), (4, "peer")]
    {
        party.lobby.connect(peer);
        let (kind, reason) = failure(&party.lobby, peer);
        assert_eq!(kind, FailureKind::Lookup);
        assert!(reason.contains(expected), "{reason}");
    }
}

#[test]
fn a_failed_connect_may_be_tried_again() {
    let store = Store::new();
    let left = Party::start(config(0, 2, &store), false, &store);
    left.lobby.connect(1);
    assert_eq!(failure(&left.lobby, 1).0, FailureKind::Lookup);
    let _right = Party::start(config(1, 2, &store), false, &store);
    left.lobby.connect(1);
    lanes(&left.lobby, 1, 2);
}

/// A store that never answers.
struct Hanging {
    asked: Sender<u32>,
    never: Mutex<Receiver<()>>,
}

impl Directory for Hanging {
    fn lookup(&self, rank: u32) -> Result<Vec<u8>, String> {
        self.asked.send(rank).unwrap();
        let _ = self.never.lock().unwrap().recv();
        Err("gone".to_owned())
    }
}

#[test]
fn a_lookup_that_hangs_holds_up_neither_arrivals_nor_the_end() {
    let store = Store::new();
    let (asked, was_asked) = channel();
    let (keep, never) = channel();
    let mut stuck = config(0, 2, &store);
    stuck.directory = Arc::new(Hanging { asked, never: Mutex::new(never) });
    let stuck = Party::start(stuck, false, &store);
    stuck.lobby.connect(1);
    was_asked.recv().unwrap();
    let other = Party::start(config(1, 2, &store), false, &store);
    other.lobby.connect(0);
    lanes(&other.lobby, 0, 2);
    lanes(&stuck.lobby, 1, 2);
    let started = Instant::now();
    stuck.end();
    assert!(started.elapsed() < Duration::from_secs(2));
    drop(keep);
}

#[test]
fn the_end_closes_the_listeners() {
    let store = Store::new();
    let party = Party::start(config(0, 2, &store), false, &store);
    let address = party.lobby.endpoint().addresses[0];
    assert!(std::net::TcpStream::connect((address.ip, address.port)).is_ok());
    party.end();
    assert!(std::net::TcpStream::connect((address.ip, address.port)).is_err());
}

#[test]
fn contradictions_are_refused_and_secrets_are_not_shown() {
    let store = Store::new();
    let mut outside = config(2, 2, &store);
    outside.secret = [123; 32];
    assert!(!format!("{outside:?}").contains("123"));
    assert!(Lobby::start(outside).unwrap_err().to_string().contains("rank 2"));
    let mut no_lanes = config(0, 2, &store);
    no_lanes.lanes = 0;
    assert!(Lobby::start(no_lanes).unwrap_err().to_string().contains("0 lanes"));
    let mut nowhere = config(0, 2, &store);
    nowhere.interfaces.clear();
    assert!(Lobby::start(nowhere).unwrap_err().to_string().contains("no interface"));
    let mut untunable = config(0, 2, &store);
    untunable.tuning.congestion_control = Some("carrier-pigeon".to_owned());
    assert!(Lobby::start(untunable).unwrap_err().to_string().contains("carrier-pigeon"));
}
