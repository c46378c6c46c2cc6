//! The schedules that tests go through.

use gradwire_schedule::{Algorithm, Collective, Rank};

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
