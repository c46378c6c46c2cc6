//! Which algorithm carries out an operation when the caller names none.

use gradwire_schedule::{Algorithm, Collective};

/// Largest all-reduce that is done in one hop, in bytes over all peers together.
const ONE_SHOT_BYTES: usize = 64 << 10;
/// Most ranks that exchange chunks each with each; beyond it messages get small and many, and so do
/// connections, which are made on first use: a job of hundreds must not begin with all to all.
const DIRECT_RANKS: usize = 8;
/// Smallest tensor per rank for which a pipeline through all ranks beats a logarithm of steps.
const RING_BYTES_PER_RANK: usize = 16 << 10;
/// The same for a few ranks on a network: there a ring keeps each link busy with one stream in each
/// direction, where an exchange of all with all makes streams meet in front of every receiver.
const NETWORK_RING_BYTES_PER_RANK: usize = 1 << 20;

/// Chooses by what every rank knows alike (never by what one of them measures), so that all choose
/// the same. The bounds follow from the number of messages each algorithm waits for in sequence:
/// 1 in one shot, 2 direct, 2·log₂ n halving and doubling, 2(n−1) around a ring; all but the first
/// move the same bytes. `on_network` says whether ranks may be on different hosts.
pub(crate) fn choose(
    collective: Collective,
    bytes: usize,
    ranks: usize,
    on_network: bool,
) -> Algorithm {
    let ring_bytes =
        if on_network { NETWORK_RING_BYTES_PER_RANK.saturating_mul(ranks) } else { usize::MAX };
    match collective {
        Collective::AllReduce if ranks <= DIRECT_RANKS && bytes * (ranks - 1) <= ONE_SHOT_BYTES => {
            Algorithm::OneShot
        }
        Collective::AllReduce | Collective::ReduceScatter | Collective::AllGather => {
            if ranks <= DIRECT_RANKS && (ranks <= 2 || bytes < ring_bytes) {
                Algorithm::Direct
            } else if bytes >= ranks * RING_BYTES_PER_RANK {
                Algorithm::Ring
            } else {
                Algorithm::HalvingDoubling
            }
        }
        Collective::Barrier if ranks > DIRECT_RANKS => Algorithm::HalvingDoubling,
        Collective::Reduce { .. } | Collective::Broadcast { .. } if ranks > 2 => Algorithm::Tree,
        _ => Algorithm::Direct,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_ranks_and_network_decide() {
        let all_reduce =
            |bytes, ranks, on_network| choose(Collective::AllReduce, bytes, ranks, on_network);
        assert_eq!(all_reduce(8, 4, true), Algorithm::OneShot);
        assert_eq!(all_reduce(8, 64, true), Algorithm::HalvingDoubling);
        assert_eq!(all_reduce(64 << 20, 2, true), Algorithm::Direct);
        assert_eq!(all_reduce(64 << 20, 4, false), Algorithm::Direct);
        assert_eq!(all_reduce(64 << 20, 4, true), Algorithm::Ring);
        assert_eq!(all_reduce(64 << 20, 64, false), Algorithm::Ring);
    }
}
