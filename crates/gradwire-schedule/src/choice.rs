//! Which algorithm carries out an operation when the caller names none.

use crate::{Algorithm, Collective, Hosts};

/// Largest all-reduce that is done in one hop, in bytes over all peers together.
const ONE_SHOT_BYTES: usize = 64 << 10;
/// Most ranks that exchange chunks each with each; beyond it messages get small and many, and so do
/// connections, which are made on first use: a job of hundreds must not begin with all to all.
const DIRECT_RANKS: usize = 8;
/// Smallest tensor per rank for which a pipeline through all ranks beats a logarithm of steps.
const RING_BYTES_PER_RANK: usize = 16 << 10;
/// The same for a few ranks or hosts on a network: there a ring keeps each link busy with one stream
/// in each direction, where an exchange of all with all makes streams meet in front of every receiver.
const NETWORK_RING_BYTES_PER_RANK: usize = 128 << 10;
/// Smallest tensor per rank for which fewer bytes between hosts are worth two more hops within.
const HIERARCHY_BYTES_PER_RANK: usize = 16 << 10;

impl Algorithm {
    /// Chooses for a tensor of so many bytes by what every rank knows alike (never by what one of
    /// them measures), so that all choose the same.
    ///
    /// The bounds follow from the number of messages each algorithm waits for in sequence: 1 in one
    /// shot, 2 direct, 2·log₂ n halving and doubling, 2(n−1) around a ring; all but the first move
    /// the same bytes, unless ranks share hosts: then the hierarchy moves fewer between them.
    /// `on_network` says whether any two ranks talk over a network.
    pub fn choose(
        collective: Collective,
        bytes: usize,
        hosts: &Hosts,
        on_network: bool,
    ) -> Algorithm {
        let ranks = hosts.ranks() as usize;
        let ring_bytes =
            if on_network { NETWORK_RING_BYTES_PER_RANK.saturating_mul(ranks) } else { usize::MAX };
        match collective {
            Collective::AllReduce
                if ranks <= DIRECT_RANKS && bytes * (ranks - 1) <= ONE_SHOT_BYTES =>
            {
                Algorithm::OneShot
            }
            Collective::AllReduce | Collective::ReduceScatter | Collective::AllGather
                if is_shared(hosts) && bytes >= ranks * HIERARCHY_BYTES_PER_RANK =>
            {
                // Of two hosts either is the other's neighbor and all there is.
                let few = hosts.count() as usize <= DIRECT_RANKS && bytes < ring_bytes;
                match few || hosts.count() == 2 {
                    true => Algorithm::Hierarchical,
                    false => Algorithm::HierarchicalRing,
                }
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
            Collective::Reduce { .. } | Collective::Broadcast { .. } if ranks > 2 => {
                Algorithm::Tree
            }
            _ => Algorithm::Direct,
        }
    }

    /// Chooses for values that travel encoded: one that encodes twice at any number of ranks, and
    /// nothing that stays within a host.
    pub fn choose_for_codec(hosts: &Hosts) -> Algorithm {
        if is_shared(hosts) { Algorithm::Hierarchical } else { Algorithm::Direct }
    }
}

/// Whether there are several hosts, and one of them has several ranks.
fn is_shared(hosts: &Hosts) -> bool {
    hosts.count() > 1 && hosts.most_ranks() > 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_ranks_and_network_decide() {
        let all_reduce = |bytes, ranks, on_network| {
            Algorithm::choose(Collective::AllReduce, bytes, &Hosts::apart(ranks), on_network)
        };
        assert_eq!(all_reduce(8, 4, true), Algorithm::OneShot);
        assert_eq!(all_reduce(8, 64, true), Algorithm::HalvingDoubling);
        assert_eq!(all_reduce(64 << 20, 2, true), Algorithm::Direct);
        assert_eq!(all_reduce(64 << 20, 4, false), Algorithm::Direct);
        assert_eq!(all_reduce(64 << 20, 4, true), Algorithm::Ring);
        assert_eq!(all_reduce(64 << 20, 64, false), Algorithm::Ring);
    }

    #[test]
    fn shared_hosts_reduce_within_first() {
        let all_reduce = |bytes, ranks, per_host| {
            let hosts = Hosts::blocks(ranks, per_host);
            (
                Algorithm::choose(Collective::AllReduce, bytes, &hosts, true),
                Algorithm::choose_for_codec(&hosts),
            )
        };
        use Algorithm::{Direct, Hierarchical, HierarchicalRing, OneShot};
        assert_eq!(all_reduce(64 << 20, 16, 8), (Hierarchical, Hierarchical), "two hosts");
        assert_eq!(all_reduce(64 << 20, 16, 4), (HierarchicalRing, Hierarchical), "four");
        assert_eq!(all_reduce(8, 4, 2), (OneShot, Hierarchical), "few bytes");
        assert_eq!(all_reduce(64 << 20, 4, 4).1, Direct, "one host");
    }
}
