//! The simulated network against laws that hold for any network.

use std::path::Path;

use gradwire_schedule::Algorithm;
use gradwire_sim::network::{Disturbance, Operation, Outcome, simulate};
use gradwire_topology::{AlphaBetaGamma, Cluster, Graph, Link, Vertex};
use proptest::prelude::*;

fn cluster(hosts: u32, devices: u32, extra: &str) -> Cluster {
    let text = format!(
        "[[hosts]]\ncount = {hosts}\ndevice = \"cpu\"\ndevices = {devices}\nnic = \"1gbit\"\n{extra}"
    );
    Cluster::parse(Path::new("test.toml"), &text).expect("a good file")
}

const RACKS: &str = "\n[[tiers]]\nname = \"rack\"\nhosts = 2\nuplink = \"1gbit\"\n";

fn run(cluster: &Cluster, operation: &Operation, unfolded: bool) -> Outcome {
    simulate(cluster, operation, unfolded).expect("it runs")
}

fn symmetric() -> impl Strategy<Value = Algorithm> {
    prop::sample::select(vec![Algorithm::Ring, Algorithm::Direct])
}

fn any_algorithm() -> impl Strategy<Value = Algorithm> {
    let other = vec![
        Algorithm::OneShot,
        Algorithm::Tree,
        Algorithm::HalvingDoubling,
        Algorithm::Star,
        Algorithm::Hierarchical,
        Algorithm::HierarchicalRing,
    ];
    prop_oneof![symmetric(), prop::sample::select(other)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn a_folded_run_agrees_with_the_unfolded_one(
        algorithm in symmetric(), groups in 1u32..4, devices in 1u32..4, racks in any::<bool>(),
        kilobytes in 1u64..900,
    ) {
        let hosts = groups * if racks { 2 } else { 1 };
        prop_assume!(hosts * devices > 1);
        let cluster = cluster(hosts, devices, if racks { RACKS } else { "" });
        let ranks = hosts * devices;
        let bytes = kilobytes * 1024 / u64::from(4 * ranks) * u64::from(4 * ranks);
        let operation = Operation::all_reduce(algorithm, ranks, bytes);
        let (whole, folded) = (run(&cluster, &operation, true), run(&cluster, &operation, false));
        prop_assert!(
            (whole.seconds / folded.seconds - 1.0).abs() < 1e-6,
            "{} and {} s, {} of {} simulated",
            whole.seconds, folded.seconds, folded.simulated, whole.simulated
        );
    }

    #[test]
    fn no_all_reduce_beats_the_lower_bound(
        algorithm in any_algorithm(), hosts in 2u32..9, kilobytes in 1u64..2000,
    ) {
        let cluster = cluster(hosts, 1, "");
        let bytes = kilobytes * 1024;
        let operation = Operation::all_reduce(algorithm, hosts, bytes);
        let host = cluster.host();
        let model = AlphaBetaGamma {
            alpha: cluster.network_latency().0,
            beta: 1.0 / host.nic_payload().0,
            gamma: 1.0 / host.reduce.0,
        };
        let seconds = run(&cluster, &operation, false).seconds;
        prop_assert!(seconds >= model.all_reduce_at_least(hosts, bytes as f64));
    }

    #[test]
    fn disturbance_never_helps_and_a_seed_repeats(
        algorithm in any_algorithm(), seed in any::<u64>(), late in 1e-3f64..0.1,
    ) {
        let cluster = cluster(4, 1, "");
        let calm = Operation::all_reduce(algorithm, 4, 1 << 20);
        let mut stormy = calm.clone();
        stormy.disturbance = Disturbance { late: vec![(2, late)], slow: vec![(1, 2.0)], jitter: 1e-4, seed };
        let first = run(&cluster, &stormy, false);
        prop_assert_eq!(first.seconds, run(&cluster, &stormy, false).seconds);
        prop_assert!(first.seconds >= run(&cluster, &calm, false).seconds);
    }
}

/// Bytes that leave each host, headers included.
fn sent_by_hosts(cluster: &Cluster, outcome: &Outcome) -> Vec<f64> {
    let graph = Graph::of(cluster);
    let mut sent = vec![0.0; cluster.host_count() as usize];
    for (link, bytes) in &outcome.carried {
        let Link { from, to, .. } = graph.links[*link as usize];
        if let (Vertex::Nic { host, .. }, Vertex::Switch { .. }) = (from, to) {
            sent[host as usize] += bytes;
        }
    }
    sent
}

#[test]
fn a_host_with_several_ranks_sends_as_much_as_one_with_one() {
    const BYTES: u64 = 16 << 20;
    let sent = |devices, algorithm, codec: Option<&str>| {
        let cluster = cluster(4, devices, "");
        let mut operation = Operation::all_reduce(algorithm, 4 * devices, BYTES);
        operation.codec = codec.map(|name| name.parse().expect("a codec"));
        let sent = sent_by_hosts(&cluster, &run(&cluster, &operation, true));
        sent.into_iter().fold(0.0, f64::max) / BYTES as f64
    };
    for algorithm in [Algorithm::Hierarchical, Algorithm::HierarchicalRing] {
        for devices in [1, 2, 4] {
            let share = sent(devices, algorithm, None);
            assert!((share / 1.5 - 1.0).abs() < 0.01, "{algorithm}, {devices} devices: {share}");
        }
    }
    assert!(sent(4, Algorithm::Direct, None) > 5.9, "flat, each rank sends to each");
    let share = sent(4, Algorithm::Hierarchical, Some("int8"));
    assert!((share * 32.0 / 8.06 / 1.5 - 1.0).abs() < 0.02, "int8: {share}");
}

#[test]
fn a_slow_codec_is_charged_on_both_sides() {
    let cluster = cluster(2, 1, "");
    let seconds = |rate| {
        let mut operation = Operation::all_reduce(Algorithm::Direct, 2, 64 << 20);
        operation.codec = Some("int8".parse().expect("a codec"));
        operation.codec_rate = rate;
        run(&cluster, &operation, false).seconds
    };
    let (fast, slow) = (seconds(1e12), seconds(1e8));
    // Each rank encodes half and decodes half, twice: 128 MiB at 0.1 GB/s, hidden by nothing.
    assert!(slow > 1.34 && slow < 1.6, "{slow}");
    assert!(fast < 0.2, "{fast}");
    assert!(seconds(10e9) < 1.1 * fast, "a fast codec hides behind the wire");
}

#[test]
fn more_ranks_than_devices_are_refused() {
    let operation = Operation::all_reduce(Algorithm::Ring, 9, 1024);
    let error = simulate(&cluster(4, 2, ""), &operation, false).expect_err("8 devices");
    assert!(error.to_string().contains("8 devices"), "{error}");
}

#[test]
fn ten_thousand_ranks_are_folded() {
    let cluster = cluster(10_240, 1, "");
    let operation = Operation::all_reduce(Algorithm::Ring, 10_240, 10_240 * 4096);
    let outcome = run(&cluster, &operation, false);
    assert_eq!(outcome.simulated, 1);
    assert!(outcome.seconds > 0.3, "{}", outcome.seconds);
}
