//! Ranks for tests: a lobby each, with the store that they find each other in.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::{Duration, Instant};

use gradwire_core::{FrameKind, Header};
use gradwire_transport::{
    Directory, Doorbell, Endpoint, Frame, Interface, Landing, Lane, Lobby, LobbyConfig, LobbyEvent,
    Payload, Receiver, TcpTuning,
};

/// How long tests wait for what has to happen: long, because machines that run tests are busy.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Where endpoints are published.
#[derive(Default)]
pub struct Store(Mutex<HashMap<u32, Vec<u8>>>);

impl Store {
    pub fn new() -> Arc<Store> {
        Arc::default()
    }

    pub fn publish(&self, endpoint: &Endpoint) {
        self.publish_bytes(endpoint.rank, endpoint.encode());
    }

    pub fn publish_bytes(&self, rank: u32, bytes: Vec<u8>) {
        self.0.lock().unwrap().insert(rank, bytes);
    }
}

impl Directory for Store {
    fn lookup(&self, rank: u32) -> Result<Vec<u8>, String> {
        self.0.lock().unwrap().get(&rank).cloned().ok_or_else(|| "not published".to_owned())
    }
}

pub fn loopback(name: &str, address: &str) -> Interface {
    Interface {
        name: name.to_owned(),
        addresses: vec![address.parse().unwrap()],
        speed_mbits: 0,
        up: true,
        loopback: true,
    }
}

/// Two TCP lanes over loopback.
pub fn config(rank: u32, world_size: u32, store: &Arc<Store>) -> LobbyConfig {
    LobbyConfig {
        rank,
        world_size,
        secret: [7; 32],
        session: 1,
        interfaces: vec![loopback("lo", "127.0.0.1")],
        lanes: 2,
        frames_per_lane: 16,
        host_id: String::new(),
        shared_memory: false,
        segment_bytes: 256 << 10,
        max_frame_bytes: 16 << 10,
        tuning: TcpTuning::default(),
        doorbell: None,
        connect_timeout: PATIENCE,
        on_event: Arc::new(|| {}),
        directory: store.clone(),
    }
}

/// A rank that has published its endpoint.
pub struct Party {
    pub rank: u32,
    pub lobby: Lobby,
    _doorbell: Option<Doorbell>,
}

impl Party {
    pub fn start(mut config: LobbyConfig, shared_memory: bool, store: &Store) -> Party {
        let rank = config.rank;
        let mut own = None;
        if shared_memory {
            let (doorbell, descriptor) = Doorbell::create().unwrap();
            own = Some(doorbell);
            config.shared_memory = true;
            config.doorbell = Some(descriptor);
        }
        let lobby = Lobby::start(config).unwrap();
        store.publish(lobby.endpoint());
        Party { rank, lobby, _doorbell: own }
    }

    pub fn end(self) {
        drop(self);
    }
}

pub fn next_event(lobby: &Lobby, patience: Duration) -> Option<LobbyEvent> {
    let deadline = Instant::now() + patience;
    loop {
        if let Some(event) = lobby.poll() {
            return Some(event);
        }
        if Instant::now() >= deadline {
            return None;
        }
        sleep(Duration::from_micros(200));
    }
}

/// Waits for `count` lanes to `peer`, of which number 0 has to come first.
pub fn lanes(lobby: &Lobby, peer: u32, count: u16) -> BTreeMap<u16, Box<dyn Lane>> {
    let mut lanes = BTreeMap::new();
    for _ in 0..count {
        match next_event(lobby, PATIENCE) {
            Some(LobbyEvent::Connected { peer: from, lane, index, host }) => {
                assert_eq!(from, peer);
                assert!(!host.is_empty());
                assert!(!lanes.is_empty() || index == 0, "lane {index} came first");
                assert!(lanes.insert(index, lane).is_none(), "lane {index} came twice");
            }
            other => panic!("{other:?} after {} of {count} lanes", lanes.len()),
        }
    }
    lanes
}

/// Nothing more happens.
pub fn silence(lobby: &Lobby) {
    if let Some(event) = next_event(lobby, Duration::from_millis(300)) {
        panic!("unexpected {event:?}");
    }
}

#[derive(Default)]
struct Inbox(Vec<(Header, Vec<u8>)>);

impl Receiver for Inbox {
    fn arriving(&mut self, _: &Header) -> Result<Landing, String> {
        Ok(Landing::Borrow)
    }

    fn landed(&mut self, header: &Header, payload: &[u8]) {
        self.0.push((*header, payload.to_vec()));
    }
}

/// Sends a frame from one end to the other.
pub fn exchange(from: &mut dyn Lane, to: &mut dyn Lane, number: u64) {
    let payload: Vec<u8> = number.to_le_bytes().repeat(500);
    let mut header = Header::new(FrameKind::Data);
    header.payload_bytes = payload.len() as u32;
    header.sequence = number;
    let payload_sent = Payload::Owned(payload.clone().into());
    let frame =
        Frame { header: header.encode(), payload: payload_sent, operation: 1, token: number };
    from.send(frame, &mut |_, _| {}).unwrap();
    let mut inbox = Inbox::default();
    let deadline = Instant::now() + PATIENCE;
    while inbox.0.is_empty() && Instant::now() < deadline {
        from.flush(&mut |_, _| {}).unwrap();
        to.receive(&mut inbox).unwrap();
    }
    assert_eq!(inbox.0, [(header, payload)]);
}
