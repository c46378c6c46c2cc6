//! Every builder is right at every number of ranks, and costs what its paper says.

mod cases;

use gradwire_schedule::{Algorithm, Collective, Hosts, Schedule, Unsupported, verify};

const MOST_RANKS: u32 = 64;

#[test]
fn every_builder_is_right_at_1_to_64_ranks() {
    for ranks in 1..=MOST_RANKS {
        let roots: Vec<u32> = match ranks {
            1..=20 => (0..ranks).collect(),
            _ => vec![0, 1, ranks / 2, ranks - 1],
        };
        for (algorithm, collective) in cases::pairs(&roots) {
            let schedule = Schedule::build(collective, algorithm, ranks).unwrap();
            if let Err(fault) = verify(&schedule) {
                panic!("{collective} by {algorithm}, {ranks} ranks: {fault}");
            }
        }
    }
}

#[test]
fn what_tells_hosts_apart_is_right_wherever_ranks_lie() {
    for ranks in 1..=MOST_RANKS {
        for hosts in cases::layouts(ranks) {
            for (name, schedule) in cases::on_hosts(&hosts) {
                if let Err(fault) = verify(&schedule) {
                    panic!("{name}: {fault}");
                }
            }
        }
    }
}

/// What each host sends to others, in tensors.
fn sent_by_hosts(schedule: &Schedule, hosts: &Hosts) -> Vec<f64> {
    let mut sent = vec![0.0; hosts.count() as usize];
    for program in &schedule.programs {
        let host = hosts.host_of(program.rank);
        let receivers = program.steps.iter().filter_map(|step| step.kind.sends_to());
        let away = receivers.filter(|to| hosts.host_of(*to) != host).count();
        sent[host as usize] += away as f64 / f64::from(schedule.tensor_chunks());
    }
    sent
}

#[test]
fn a_host_sends_as_if_it_were_one_rank() {
    for (ranks, per_host) in [(4, 2), (16, 4), (64, 8), (6, 1)] {
        let hosts = Hosts::blocks(ranks, per_host);
        let h = f64::from(hosts.count());
        for (name, schedule) in cases::on_hosts(&hosts) {
            let least = (h - 1.0) / h;
            let least =
                if schedule.collective == Collective::AllReduce { 2.0 * least } else { least };
            for (host, sent) in sent_by_hosts(&schedule, &hosts).into_iter().enumerate() {
                assert!((sent - least).abs() < 1e-9, "{name}: host {host} sends {sent}");
            }
        }
    }
    // Without regard to hosts, ranks send theirs each.
    let flat = Schedule::build(Collective::AllReduce, Algorithm::Direct, 16).unwrap();
    let most = sent_by_hosts(&flat, &Hosts::blocks(16, 4)).into_iter().fold(0.0, f64::max);
    assert!((most - 6.0).abs() < 1e-9, "{most}");
}

#[test]
fn a_rank_builds_its_own_program_at_any_scale() {
    for ranks in [1000, 1024, 4096] {
        for (algorithm, collective) in cases::pairs(&[ranks - 1]) {
            let relays = matches!(collective, Collective::ReduceScatter | Collective::AllGather);
            if algorithm == Algorithm::Star && relays {
                continue; // The centre's program grows with the square of the ranks.
            }
            for rank in [0, ranks / 2, ranks - 1] {
                let program = algorithm.program(collective, rank, ranks).unwrap();
                assert!(program.steps.len() <= 4 * ranks as usize, "{collective} {algorithm}");
            }
        }
    }
}

#[test]
fn large_groups_are_right_too() {
    for (algorithm, ranks) in [
        (Algorithm::Tree, 1000),
        (Algorithm::HalvingDoubling, 300),
        (Algorithm::Ring, 200),
        (Algorithm::Direct, 200),
    ] {
        let schedule = Schedule::build(Collective::AllReduce, algorithm, ranks).unwrap();
        assert_eq!(verify(&schedule), Ok(()), "{algorithm}, {ranks} ranks");
    }
}

/// (rounds, share that the busiest rank sends) of an all-reduce.
fn cost(algorithm: Algorithm, ranks: u32) -> (u32, f64) {
    let summary = Schedule::build(Collective::AllReduce, algorithm, ranks).unwrap().summary();
    (summary.rounds, summary.most_sent())
}

#[test]
fn all_reduce_costs_what_the_papers_say() {
    for ranks in 2..=MOST_RANKS {
        let n = f64::from(ranks);
        let least = 2.0 * (n - 1.0) / n;
        let logarithm = ranks.next_power_of_two().ilog2();
        for (algorithm, rounds, sent) in [
            (Algorithm::Ring, 2 * (ranks - 1), least),
            (Algorithm::HalvingDoubling, 2 * logarithm, least),
            (Algorithm::Direct, 2, least),
            (Algorithm::Star, 2, n - 1.0),
            (Algorithm::OneShot, 1, n - 1.0),
        ] {
            let found = cost(algorithm, ranks);
            // Halving-doubling has idle rounds on the longest way where ranks are no power of two.
            let idle = algorithm == Algorithm::HalvingDoubling && !ranks.is_power_of_two();
            assert!(found.0 == rounds || idle && found.0 < rounds, "{algorithm}, {ranks} ranks");
            assert!((found.1 - sent).abs() < 1e-9, "{algorithm}, {ranks} ranks: {}", found.1);
        }
        // Inner nodes of one tree are leaves of the other: one half up, at most three halves more.
        let (rounds, sent) = cost(Algorithm::Tree, ranks);
        assert!(rounds <= 2 * (logarithm + 1), "tree, {ranks} ranks: {rounds} rounds");
        assert!(sent <= 2.0, "tree, {ranks} ranks: {sent} sent");
    }
}

#[test]
fn unsupported_requests_say_what_is_wrong() {
    let message = |result: Result<Schedule, Unsupported>| result.unwrap_err().to_string();
    let root = Collective::Reduce { root: 4 };
    assert_eq!(
        message(Schedule::build(Collective::AllToAll, Algorithm::Ring, 4)),
        "algorithm ring does not do all_to_all"
    );
    assert_eq!(message(Schedule::build(root, Algorithm::Ring, 4)), "rank 4 is not in a group of 4");
    assert_eq!(
        message(Schedule::build(Collective::AllReduce, Algorithm::Ring, 0)),
        "a group has at least one rank, not 0"
    );
    assert_eq!(
        message(Schedule::build(Collective::AllReduce, Algorithm::Ring, u32::MAX)),
        "4294967295 ranks; the limit is 1048576"
    );
    let peer = Collective::SendReceive { from: 0, to: 9 };
    assert_eq!(
        Algorithm::Direct.program(peer, 0, 4),
        Err(Unsupported::NoSuchRank { rank: 9, ranks: 4 })
    );
    assert_eq!(
        Algorithm::Direct.program(Collective::Barrier, 4, 4),
        Err(Unsupported::NoSuchRank { rank: 4, ranks: 4 })
    );
}

#[test]
fn names_and_codes_come_back() {
    for (code, algorithm) in (0..).zip(Algorithm::ALL) {
        assert_eq!(algorithm.code(), code);
        assert_eq!(Algorithm::from_code(code), Some(algorithm));
        assert_eq!(algorithm.to_string().parse(), Ok(algorithm));
    }
    assert_eq!(Algorithm::from_code(8), None);
    for collective in cases::collectives(&[0, 3]) {
        assert_eq!(collective.to_string().parse(), Ok(collective));
        assert_eq!(Collective::name_of(collective.code()), Some(collective.name()));
    }
    assert_eq!(Collective::name_of(10), None);
    assert_eq!("reduce".parse(), Ok(Collective::Reduce { root: 0 }));
    assert_eq!("send_receive".parse(), Ok(Collective::SendReceive { from: 0, to: 1 }));
    for wrong in ["", "allreduce", "reduce:x", "all_reduce:0", "reduce:1:2", "send_receive:1"] {
        assert!(wrong.parse::<Collective>().is_err(), "{wrong}");
    }
    let error = "rings".parse::<Algorithm>().unwrap_err().to_string();
    assert!(error.starts_with("unknown algorithm `rings`, expected one of ring, tree"), "{error}");
}
