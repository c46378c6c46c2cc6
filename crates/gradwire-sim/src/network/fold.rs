//! Symmetry: ranks that behave alike are simulated once.
//!
//! If the whole system looks the same after all ranks are moved up by a period, every rank does what
//! its image does, at the same time. So one period is simulated; a frame to a rank outside of it is
//! delivered to that rank's image inside, as coming from the sender's image. A link carries the flows
//! of all ranks; moved back into the period, these are exactly the flows that are simulated.

use gradwire_schedule::{Algorithm, Collective};
use gradwire_topology::{Cluster, LinkId};

use super::Operation;

/// Which ranks stand for which.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fold {
    /// Ranks that are simulated: the first ones.
    pub period: u32,
    /// Ranks in all.
    pub ranks: u32,
    hosts: u32,
    links_per_host: u32,
    all_hosts: u32,
    /// First link of each tier and the tier's switches in a period.
    tiers: Vec<(u32, u32)>,
}

impl Fold {
    /// Every rank stands for itself.
    pub fn none(cluster: &Cluster, ranks: u32) -> Self {
        Self {
            period: ranks,
            ranks,
            hosts: cluster.host_count(),
            links_per_host: 0,
            all_hosts: cluster.host_count(),
            tiers: Vec::new(),
        }
    }

    /// The smallest period of an operation, if it is symmetric.
    pub fn of(cluster: &Cluster, operation: &Operation) -> Option<Self> {
        let ranks = operation.ranks;
        // One-shot reduces in the order of ranks everywhere: there rank 0 is not like the others.
        let turns = matches!(operation.algorithm, Algorithm::Ring | Algorithm::Direct);
        let chunks = u64::from(ranks);
        let symmetric = turns
            && operation.collective == Collective::AllReduce
            && operation.elements.is_multiple_of(chunks)
            && operation.disturbance.is_none()
            && cluster.is_uniform();
        let host = cluster.host();
        if !symmetric || !ranks.is_multiple_of(host.devices) {
            return None;
        }
        let used = ranks / host.devices;
        // Moving by whole switches of the highest tier that is used moves switches onto switches.
        let tiers: Vec<u32> = cluster.tiers.iter().map(|tier| tier.hosts).collect();
        let hosts = tiers.iter().copied().filter(|hosts| *hosts < used).max().unwrap_or(1);
        if !used.is_multiple_of(hosts) {
            return None;
        }
        Some(Self::with(cluster, ranks, hosts))
    }

    fn with(cluster: &Cluster, ranks: u32, hosts: u32) -> Self {
        let host = cluster.host();
        let links_per_host = links_of_host(cluster);
        let all_hosts = cluster.host_count();
        let mut first = links_per_host * all_hosts;
        let mut tiers = Vec::new();
        for tier in &cluster.tiers {
            tiers.push((first, hosts.div_ceil(tier.hosts).max(1)));
            first += 2 * all_hosts.div_ceil(tier.hosts);
        }
        Self { period: hosts * host.devices, ranks, hosts, links_per_host, all_hosts, tiers }
    }

    /// The rank that stands for `rank`, and what is to be subtracted from ranks around it.
    pub fn image(&self, rank: u32) -> (u32, u32) {
        (rank % self.period, rank - rank % self.period)
    }

    /// A rank as it looks after all have been moved down by `by`.
    pub fn moved(&self, rank: u32, by: u32) -> u32 {
        (rank + self.ranks - by) % self.ranks
    }

    /// The link that stands for a link.
    pub fn link(&self, link: LinkId) -> LinkId {
        if self.links_per_host == 0 {
            return link;
        }
        if link < self.links_per_host * self.all_hosts {
            let (host, within) = (link / self.links_per_host, link % self.links_per_host);
            return host % self.hosts * self.links_per_host + within;
        }
        let tier = self.tiers.iter().rev().find(|(first, _)| *first <= link);
        tier.map_or(link, |(first, switches)| {
            let (switch, way) = ((link - first) / 2, (link - first) % 2);
            first + switch % switches * 2 + way
        })
    }
}

/// Directed links that a graph has for each host.
fn links_of_host(cluster: &Cluster) -> u32 {
    let one = Cluster { tiers: Vec::new(), ..cluster.resized(1) };
    gradwire_topology::Graph::of(&one).links.len() as u32
}
