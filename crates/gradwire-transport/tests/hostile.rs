//! Nothing that a peer sends or writes breaks more than its own lane. A seeded generator of valid,
//! mutated and random inputs; the same harness runs under the fuzzer (see `fuzz/`).

#[path = "hostile/feed.rs"]
mod feed;
mod rig;

use gradwire_core::HEADER_BYTES;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rig::header_of;

const INPUTS: u64 = 20_000;

/// A few frames, mostly valid, with a few bytes changed, cut at some place. `align` pads frames
/// as a ring does.
fn input(random: &mut StdRng, align: bool) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..random.random_range(1..6) {
        if align && random.random_ratio(1, 12) {
            bytes.extend([0xff; HEADER_BYTES]);
            continue;
        }
        let payload = random.random_range(0..1500usize) * random.random_range(0..=1usize);
        let mut header = header_of(0, random.random_range(0..4), payload);
        header.edge = random.random();
        bytes.extend(header.encode());
        bytes.extend((0..payload).map(|_| random.random::<u8>()));
        if align {
            bytes.resize(bytes.len().next_multiple_of(HEADER_BYTES), 0);
        }
    }
    for _ in 0..random.random_range(0..3) {
        let at = random.random_range(0..bytes.len().min(200));
        bytes[at] = random.random();
    }
    if random.random_ratio(1, 3) {
        bytes.truncate(random.random_range(0..bytes.len()));
    }
    bytes
}

#[test]
fn tcp_survives_any_bytes() {
    let mut random = StdRng::seed_from_u64(1);
    let frames: usize = (0..INPUTS).map(|_| feed::feed_tcp(&input(&mut random, false))).sum();
    assert!(frames > INPUTS as usize / 2, "the inputs are too bad to get anywhere: {frames}");
}

#[test]
fn rings_survive_any_bytes() {
    let mut random = StdRng::seed_from_u64(2);
    let mut frames = 0;
    for _ in 0..INPUTS {
        let content = input(&mut random, true);
        let head = match random.random_range(0..10) {
            0 => random.random(),
            1 => random.random_range(0..300u64) * 64,
            _ => (content.len() as u64).next_multiple_of(64),
        };
        frames += feed::feed_ring(&[&head.to_le_bytes()[..], &content].concat());
    }
    assert!(frames > INPUTS as usize / 2, "the inputs are too bad to get anywhere: {frames}");
}
