//! Which ranks share a host.

use std::collections::HashMap;
use std::hash::Hash;

use crate::Rank;

/// Which ranks of a group share a host, and so reach each other without the network. Hosts are
/// numbered in the order of their first ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hosts {
    host_of: Vec<u32>,
    ranks_on: Vec<Vec<Rank>>,
}

impl Hosts {
    /// Ranks that have the same label, in the order of ranks, share a host.
    pub fn by_label<T: Eq + Hash>(labels: impl IntoIterator<Item = T>) -> Self {
        let mut numbers = HashMap::new();
        let (mut host_of, mut ranks_on) = (Vec::new(), Vec::<Vec<Rank>>::new());
        for (rank, label) in (0..).zip(labels) {
            let host = *numbers.entry(label).or_insert(ranks_on.len());
            if host == ranks_on.len() {
                ranks_on.push(Vec::new());
            }
            ranks_on[host].push(rank);
            host_of.push(host as u32);
        }
        Self { host_of, ranks_on }
    }

    /// Every rank on a host of its own.
    pub fn apart(ranks: Rank) -> Self {
        Self::blocks(ranks, 1)
    }

    /// So many neighbouring ranks on each host (at least 1); the last one may have fewer.
    pub fn blocks(ranks: Rank, ranks_per_host: Rank) -> Self {
        Self::by_label((0..ranks).map(|rank| rank / ranks_per_host.max(1)))
    }

    /// The number of ranks.
    pub fn ranks(&self) -> Rank {
        self.host_of.len() as Rank
    }

    /// The number of hosts.
    pub fn count(&self) -> u32 {
        self.ranks_on.len() as u32
    }

    /// The host of a rank.
    pub fn host_of(&self, rank: Rank) -> u32 {
        self.host_of[rank as usize]
    }

    /// The ranks of a host, in ascending order; never none.
    pub fn ranks_on(&self, host: u32) -> &[Rank] {
        &self.ranks_on[host as usize]
    }

    /// How many ranks the fullest host has.
    pub fn most_ranks(&self) -> u32 {
        self.ranks_on.iter().map(Vec::len).max().unwrap_or(0) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_numbered_by_their_first_ranks() {
        let hosts = Hosts::by_label(["b", "a", "b", "c"]);
        assert_eq!((hosts.ranks(), hosts.count(), hosts.most_ranks()), (4, 3, 2));
        assert_eq!((0..4).map(|rank| hosts.host_of(rank)).collect::<Vec<_>>(), [0, 1, 0, 2]);
        assert_eq!(hosts.ranks_on(0), [0, 2]);
        let blocks = Hosts::blocks(5, 2);
        assert_eq!(blocks.ranks_on(1), [2, 3]);
        assert_eq!(blocks.ranks_on(2), [4]);
    }
}
