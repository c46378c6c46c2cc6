//! The schedules that tests go through.

use gradwire_schedule::{Algorithm, Collective, Hosts, Rank, Schedule};

/// Every collective for each of the roots.
pub fn collectives(roots: &[Rank]) -> Vec<Collective> {
    let mut collectives = vec![
        Collective::AllReduce,
        Collective::ReduceScatter,
        Collective::AllGather,
        Collective::AllToAll,
        Collective::Barrier,
    ];
    for &root in roots {
        collectives.extend([
            Collective::Reduce { root },
            Collective::Broadcast { root },
            Collective::Gather { root },
            Collective::Scatter { root },
        ]);
        collectives.extend(roots.iter().map(|&to| Collective::SendReceive { from: root, to }));
    }
    collectives
}

/// Every supported pair of algorithm and collective for each of the roots.
pub fn pairs(roots: &[Rank]) -> Vec<(Algorithm, Collective)> {
    let all = collectives(roots);
    let every = Algorithm::ALL.into_iter().flat_map(|algorithm| {
        all.iter().map(move |&collective| (algorithm, collective)).collect::<Vec<_>>()
    });
    every.filter(|&(algorithm, collective)| algorithm.supports(collective)).collect()
}

/// Ways in which ranks may lie on hosts: in blocks, dealt out in turn, one host fuller than others.
#[allow(dead_code, reason = "not every test goes through them")]
pub fn layouts(ranks: Rank) -> Vec<Hosts> {
    let mut layouts: Vec<Hosts> =
        [2, 3, 4, 8, ranks].into_iter().map(|per_host| Hosts::blocks(ranks, per_host)).collect();
    layouts.extend([2, 3, 5].map(|hosts| Hosts::by_label((0..ranks).map(|rank| rank % hosts))));
    layouts.push(Hosts::by_label((0..ranks).map(|rank| rank.saturating_sub(ranks / 2))));
    layouts
}

/// Every schedule that tells hosts apart, with its name.
#[allow(dead_code, reason = "not every test goes through them")]
pub fn on_hosts(hosts: &Hosts) -> Vec<(String, Schedule)> {
    let algorithms = [Algorithm::Hierarchical, Algorithm::HierarchicalRing];
    let collectives = [Collective::AllReduce, Collective::ReduceScatter, Collective::AllGather];
    let pairs =
        algorithms.into_iter().flat_map(|it| collectives.map(|collective| (it, collective)));
    pairs
        .map(|(algorithm, collective)| {
            let schedule = Schedule::build_on(collective, algorithm, hosts).expect("it is known");
            (format!("{collective} by {algorithm} on {hosts:?}"), schedule)
        })
        .collect()
}
