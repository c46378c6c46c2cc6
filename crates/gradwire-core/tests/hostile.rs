//! A peer that sends whatever it likes: no panic, bounded memory, and nobody else suffers.

use std::collections::BTreeMap;

use gradwire_core::{
    ANY_SOURCE, Arrival, Cause, Config, Core, Descriptor, FrameKind, HEADER_BYTES, Header, Plan,
    Source, Submission, SubmitError, Time, Work,
};
use gradwire_reduce::{DataType, ReduceOp};
use gradwire_schedule::{Algorithm, Collective, ProgramBuilder, Slot, StepKind};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

/// Rank 0 is the core, rank 1 the hostile peer, rank 2 a bystander.
const SHARED: u64 = 1;
const WITHOUT_PEER: u64 = 2;
const UNKNOWN: u64 = 3;
const ROUNDS: u64 = 400;
const TILE_BYTES: u32 = 16;

fn config() -> Config {
    Config {
        world_size: 3,
        window_tiles: 4,
        early_bytes: 100,
        early_budget_bytes: 1000,
        max_operations: 8,
        ..Config::default()
    }
}

fn descriptor(collective: Collective, algorithm: Algorithm, count: u64) -> Descriptor {
    Descriptor {
        collective,
        algorithm,
        dtype: DataType::I32,
        op: ReduceOp::Sum,
        codec: None,
        count,
    }
}

fn all_reduce(ranks: u32) -> std::sync::Arc<Plan> {
    let algorithm = Algorithm::Direct;
    let program = algorithm.program(Collective::AllReduce, 0, ranks).expect("it fits");
    let output = vec![200; program.output_chunks as usize];
    let descriptor = descriptor(Collective::AllReduce, algorithm, u64::from(ranks) * 50);
    Plan::new(descriptor, &program, vec![], output, TILE_BYTES).expect("the sizes fit")
}

fn receive(from: u32) -> std::sync::Arc<Plan> {
    let mut program = ProgramBuilder::new(0, 0, 1);
    program.push(StepKind::Receive { from, destination: Slot::output(0) });
    let descriptor = descriptor(Collective::SendReceive { from, to: 0 }, Algorithm::Direct, 25);
    Plan::new(descriptor, &program.finish(), vec![], vec![100], TILE_BYTES).expect("the sizes fit")
}

/// A header with something of an honest one, so that it comes far.
fn any_header(rng: &mut StdRng) -> Header {
    let kinds = [
        FrameKind::Data,
        FrameKind::Data,
        FrameKind::Data,
        FrameKind::Ready,
        FrameKind::Request,
        FrameKind::Acknowledge,
        FrameKind::Credit,
        FrameKind::Abort,
        FrameKind::Ping,
        FrameKind::Pong,
    ];
    let mut header = Header::new(*kinds.choose(rng).expect("not empty"));
    let message = rng.random_bool(0.3);
    let honest = if message {
        descriptor(Collective::SendReceive { from: 1, to: 0 }, Algorithm::Direct, 25)
    } else {
        descriptor(Collective::AllReduce, Algorithm::Direct, 150)
    };
    honest.put(&mut header);
    header.group = *[SHARED, SHARED, SHARED, SHARED, UNKNOWN].choose(rng).expect("not empty");
    header.early = rng.random_bool(0.7);
    header.sequence = rng.random_range(0..6);
    header.tag = if message { rng.random_range(0..3) } else { 0 };
    header.edge = rng.random_range(0..3);
    header.tile = rng.random_range(0..15);
    header.chunk_bytes = if message { 100 } else { 200 };
    header.payload_bytes = match header.kind {
        FrameKind::Data => *[16, 16, 16, 8, 4].choose(rng).expect("not empty"),
        FrameKind::Abort => 20,
        _ => 0,
    };
    if rng.random_bool(0.03) {
        spoil(&mut header, rng);
    }
    header
}

fn spoil(header: &mut Header, rng: &mut StdRng) {
    match rng.random_range(0..11) {
        0 => header.collective = rng.random(),
        1 => header.dtype = rng.random(),
        2 => header.count = rng.random(),
        3 => header.sequence = rng.random(),
        4 => header.tile = rng.random(),
        5 => header.edge = rng.random(),
        6 => header.chunk_bytes = rng.random(),
        7 => header.credit = rng.random(),
        8 => header.group = *[WITHOUT_PEER, rng.random()].choose(rng).expect("not empty"),
        9 => header.payload_bytes = rng.random_range(0..=gradwire_core::MAX_PAYLOAD_BYTES),
        _ => header.algorithm = rng.random(),
    }
}

/// Drives one core against one peer that goes by no rules.
struct Siege {
    core: Core,
    rng: StdRng,
    now: u64,
    /// Payloads in holds, in bytes.
    holds: BTreeMap<u64, usize>,
    in_flight: usize,
}

impl Siege {
    fn new(seed: u64) -> Self {
        let mut core = Core::new(config());
        core.create_group(SHARED, "shared", &[0, 1, 2]);
        core.create_group(WITHOUT_PEER, "without-peer", &[0, 2]);
        let rng = StdRng::seed_from_u64(seed);
        Siege { core, rng, now: 0, holds: BTreeMap::new(), in_flight: 0 }
    }

    fn submit(&mut self) {
        let (plan, tag) = match self.rng.random_range(0..4) {
            0 => (receive(1), self.rng.random_range(0..3)),
            1 => (receive(ANY_SOURCE), self.rng.random_range(0..3)),
            _ => (all_reduce(3), 0),
        };
        let deadline = Some(Time(self.now + 1_000_000));
        match self
            .core
            .submit(Time(self.now), Submission { group: SHARED, plan, tag, deadline, priority: 0 })
        {
            Ok(_) => self.in_flight += 1,
            Err(SubmitError::Full(_)) => assert_eq!(self.in_flight, config().max_operations),
            Err(SubmitError::Failed { failure, .. }) => self.check(&failure),
            Err(error) => panic!("{error}"),
        }
    }

    fn check(&self, failure: &gradwire_core::Failure) {
        let forged = failure.text == "forged";
        let right = matches!(failure.cause, Cause::PeerLost | Cause::Violation | Cause::Mismatch);
        assert!(forged || right && failure.culprit == Some(1), "{failure:?}");
    }

    /// One frame of the peer's; false if it broke the protocol.
    fn frame(&mut self) -> bool {
        let header = any_header(&mut self.rng);
        let header = Header::decode(&header.encode()).expect("it can be read");
        match self.core.on_frame(Time(self.now), 1, &header) {
            Ok(Arrival::Hold(token)) => {
                let old = self.holds.insert(token, header.payload_bytes as usize);
                assert!(old.is_none(), "a hold's token is new");
                self.core.on_held(token);
            }
            Ok(Arrival::Apply(placement)) => {
                assert_eq!(placement.bytes, header.payload_bytes, "only what was planned lands");
                self.core.on_applied(placement.operation, placement.step, placement.tile);
            }
            Ok(Arrival::Abort { group }) => {
                let mut payload = vec![4; 1];
                payload.extend(1u32.to_le_bytes());
                payload.extend(1u32.to_le_bytes());
                payload.extend(b"forged");
                self.core.on_abort(Time(self.now), group, &payload).expect("it can be read");
            }
            Ok(_) => {}
            Err(violation) => {
                self.core.on_peer_lost(Time(self.now), 1, &violation);
                return false;
            }
        }
        true
    }

    fn work(&mut self) {
        while let Some(work) = self.core.next_work() {
            match work {
                Work::Local { placement, .. } => {
                    self.core.on_applied(placement.operation, placement.step, placement.tile);
                }
                Work::ApplyHeld { token, placement } => {
                    self.holds.remove(&token).expect("a hold is there");
                    self.core.on_applied(placement.operation, placement.step, placement.tile);
                }
                Work::DropHeld(token) => {
                    self.holds.remove(&token).expect("a hold is there");
                }
            }
        }
    }

    /// The peer reads only at times.
    fn send(&mut self) {
        for peer in [1, 2] {
            while let Some(outgoing) = self.core.next_send(peer) {
                if let Source::Tile { operation, step, tile, .. } = outgoing.source {
                    self.core.on_sent(operation, step, tile);
                }
            }
        }
    }

    fn finish(&mut self) {
        while let Some(completion) = self.core.next_completion() {
            self.in_flight -= 1;
            if let Err(error) = completion.result {
                self.check(&error.failure);
            }
        }
    }

    fn check_bounds(&self) {
        let limits = config();
        let occupancy = self.core.occupancy();
        let frames =
            2 * (limits.early_budget_bytes as usize / HEADER_BYTES + limits.max_operations);
        assert!(occupancy.early_frames <= frames, "{occupancy:?}");
        assert!(self.core.early_account(1).held <= limits.early_budget_bytes);
        assert_eq!(occupancy.holds, self.holds.len());
        // Early tiles, and a window for each receive (two of the peer's in an all-reduce).
        let windows = limits.max_operations * 2 * limits.window_tiles as usize;
        let bound = windows * TILE_BYTES as usize + limits.early_budget_bytes as usize;
        let held: usize = self.holds.values().sum();
        assert!(held <= bound, "{held} bytes are held, the bound is {bound}");
    }

    fn run(mut self) {
        for _ in 0..ROUNDS {
            self.now += 100;
            if self.rng.random_bool(0.05) {
                self.submit();
            }
            let is_honest = self.frame();
            if self.rng.random_bool(0.5) {
                self.work();
                self.check_bounds();
            }
            if self.rng.random_bool(0.2) {
                self.send();
            }
            self.finish();
            if !is_honest {
                break;
            }
        }
        self.end();
    }

    fn end(mut self) {
        assert!(self.core.failure_of(WITHOUT_PEER).is_none(), "the others' group lives");
        self.core.on_peer_lost(Time(self.now), 1, "hung up");
        self.work();
        self.finish();
        assert_eq!(self.in_flight, 0, "all operations have ended");
        assert_eq!(self.core.occupancy(), Default::default(), "nothing is left");
        assert!(self.holds.is_empty(), "{} holds are left", self.holds.len());
        self.carry_on();
    }

    /// The others work on.
    fn carry_on(&mut self) {
        let submission = Submission {
            group: WITHOUT_PEER,
            plan: all_reduce(2),
            tag: 0,
            deadline: None,
            priority: 0,
        };
        self.core.submit(Time(self.now), submission).expect("the group lives");
        let sends = self.core.has_something_to_send(2);
        assert!(sends, "the all-reduce begins");
    }
}

#[test]
fn a_peer_may_send_whatever_it_likes() {
    for seed in 0..3000 {
        Siege::new(seed).run();
    }
}

#[test]
fn a_peer_that_asks_and_never_reads_gets_no_queue_of_its_own() {
    let mut core = Core::new(config());
    core.create_group(SHARED, "shared", &[0, 1, 2]);
    let submission =
        Submission { group: SHARED, plan: all_reduce(3), tag: 0, deadline: None, priority: 0 };
    core.submit(Time::ZERO, submission).expect("the group lives");
    for number in 0..10_000 {
        let mut ping = Header::new(FrameKind::Ping);
        ping.credit = number;
        let mut request = Header::new(FrameKind::Request);
        descriptor(Collective::AllReduce, Algorithm::Direct, 150).put(&mut request);
        request.group = SHARED;
        for header in [ping, request] {
            assert_eq!(core.on_frame(Time(u64::from(number)), 1, &header), Ok(Arrival::Control));
        }
    }
    let mut controls = 0;
    while let Some(outgoing) = core.next_send(1) {
        controls += usize::from(outgoing.source == Source::Empty);
    }
    assert!(controls <= 4, "{controls} frames for a peer that only asks");
}
