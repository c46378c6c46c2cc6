//! What collectives among groups of devices cost on a cluster, as NCCL carries them out.
//!
//! Latencies and the ring's and tree's number of hops are those of NCCL's own model
//! (`src/graph/tuning.cc`); bandwidths are those of the cluster's links times the shares that
//! measured all-reduces reach ([`Fabric`]).

use gradwire_schedule::Algorithm;
use gradwire_topology::Cluster;
use serde::{Deserialize, Serialize};

use super::exchange::Exchange;
use super::layout::{Carrier, Practice};

/// How much of the links' nominal rate collectives reach, and their latencies.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fabric {
    /// For a number of devices of one host: seconds of an empty all-reduce, and the share of a
    /// device's link that its bus bandwidth reaches. By number of devices.
    pub within_host: Vec<(u32, f64, f64)>,
    /// Share of the NICs' payload rate.
    pub network: f64,
    /// Seconds for each hop between hosts.
    pub hop: f64,
    /// Seconds before anything moves.
    pub base: f64,
    /// How much longer a collective takes while the device computes, or between two computations,
    /// than alone. vTrain (arXiv:2312.12391) found 30 % for NCCL.
    pub interference: f64,
    /// Multiprocessors that an overlapped collective takes from compute.
    pub multiprocessors: f64,
}

impl Default for Fabric {
    /// Fitted to all-reduces within a DGX A100, and to published points between hosts; see
    /// `docs/validation.md`.
    fn default() -> Self {
        Self {
            within_host: vec![
                (2, 40e-6, 0.63),
                (4, 45e-6, 0.70),
                (6, 60e-6, 0.735),
                (8, 76e-6, 0.75),
            ],
            network: 0.94,
            hop: 14e-6,
            base: 8.4e-6,
            interference: 1.3,
            multiprocessors: 16.0,
        }
    }
}

impl Fabric {
    /// Latency and share for a number of devices, between the measured ones by interpolation.
    fn within(&self, devices: u32) -> (f64, f64) {
        let points = &self.within_host;
        let above = points.iter().position(|point| point.0 >= devices);
        match above {
            Some(0) => (points[0].1, points[0].2),
            None => points.last().map_or((0.0, 1.0), |point| (point.1, point.2)),
            Some(at) => {
                let (low, high) = (points[at - 1], points[at]);
                let part = f64::from(devices - low.0) / f64::from(high.0 - low.0);
                (low.1 + part * (high.1 - low.1), low.2 + part * (high.2 - low.2))
            }
        }
    }
}

/// A group of devices, and what is around it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Group {
    /// Devices.
    pub ranks: u32,
    /// Devices on each host.
    pub per_host: u32,
    /// Hosts.
    pub hosts: u32,
    /// Groups that share the NICs of a host.
    pub sharing: u32,
}

impl Group {
    /// The group of `ranks` devices, each `stride` after the one before.
    pub fn of(cluster: &Cluster, ranks: u32, stride: u32) -> Self {
        let devices = cluster.host().devices;
        let per_host = (devices / stride.min(devices)).clamp(1, ranks);
        Self {
            ranks,
            per_host,
            hosts: ranks.div_ceil(per_host),
            sharing: (devices / per_host).max(1),
        }
    }

    /// Whether it spans hosts.
    pub fn is_on_network(&self) -> bool {
        self.hosts > 1
    }
}

/// Costs collectives.
#[derive(Clone, Copy, Debug)]
pub struct Network<'a> {
    /// On which links.
    pub cluster: &'a Cluster,
    /// How much of them is reached.
    pub fabric: &'a Fabric,
}

impl Network<'_> {
    /// Bytes per second that all NICs of a host carry in one direction.
    fn payload_rate(&self) -> f64 {
        let host = self.cluster.host();
        host.nic_payload().0 * f64::from(host.nics) / self.cluster.oversubscription()
    }

    /// Bytes per second that NCCL sends through all NICs of a host.
    pub fn host_rate(&self) -> f64 {
        self.payload_rate() * self.fabric.network
    }

    /// Bytes per second of one device's link within its host, as collectives of `devices` use it.
    fn link_rate(&self, devices: u32) -> f64 {
        let host = self.cluster.host();
        let link = host.nvlink.map_or(host.pcie.slower().0 / 2.0, |it| it.slower().0);
        link * self.fabric.within(devices).1
    }

    /// Bus bandwidth of a ring.
    fn ring_rate(&self, group: &Group) -> f64 {
        let within =
            if group.per_host > 1 { self.link_rate(group.per_host) } else { f64::INFINITY };
        if !group.is_on_network() {
            return within;
        }
        // A ring that has several but not all devices of a host enters by the NIC of one and leaves
        // by the NIC of another: it uses one direction of each.
        let directions = if group.per_host > 1 && group.sharing > 1 { 0.5 } else { 1.0 };
        within.min(directions * self.host_rate() / f64::from(group.sharing))
    }

    /// Seconds of `times` trips around the ring's edges (n-1 edges each) without any bytes.
    fn ring_latency(&self, group: &Group, times: f64) -> f64 {
        let (within, _) = self.fabric.within(group.per_host);
        if !group.is_on_network() {
            return within * times / 2.0;
        }
        let edges = f64::from(group.ranks - group.hosts) / f64::from(group.ranks.max(2) - 1);
        let local = if group.per_host > 1 { within * edges } else { 0.0 };
        self.fabric.base + times * (local / 2.0 + self.trip(group.hosts))
    }

    /// Seconds that a byte needs around a ring of neighbouring hosts: every hop has the latency of
    /// NICs, those that leave a switch have that of its uplink too.
    fn trip(&self, hosts: u32) -> f64 {
        let nic = 2.0 * self.cluster.host().nic.latency.0;
        let near = f64::from(hosts - 1) * (self.fabric.hop + nic);
        let tiers = self.cluster.tiers.iter().filter(|tier| tier.hosts < hosts);
        let far = tiers.map(|tier| f64::from(hosts.div_ceil(tier.hosts)) * tier.uplink.latency.0);
        near + 2.0 * far.sum::<f64>()
    }

    /// Seconds of an all-reduce.
    pub fn all_reduce(&self, group: &Group, bytes: f64) -> f64 {
        if group.ranks < 2 {
            return 0.0;
        }
        let n = f64::from(group.ranks);
        let ring =
            self.ring_latency(group, 2.0) + 2.0 * (n - 1.0) / n * bytes / self.ring_rate(group);
        ring.min(self.tree(group, bytes))
    }

    /// Two trees over the hosts, chains within.
    fn tree(&self, group: &Group, bytes: f64) -> f64 {
        if !group.is_on_network() {
            return f64::INFINITY;
        }
        let (within, _) = self.fabric.within(group.per_host);
        let local = if group.per_host > 1 { within } else { 0.0 };
        let depth = f64::from(group.hosts).log2().ceil();
        let hop = self.fabric.hop + self.cluster.network_latency().0;
        // NCCL's trees reach 0.92 of a ring's bandwidth.
        let rate = 0.92 * self.ring_rate(group);
        self.fabric.base + local + 2.0 * depth * hop + 2.0 * bytes / rate
    }

    /// Seconds of a reduce-scatter or all-gather of `bytes` in all.
    pub fn gather(&self, group: &Group, bytes: f64) -> f64 {
        if group.ranks < 2 {
            return 0.0;
        }
        let n = f64::from(group.ranks);
        self.ring_latency(group, 1.0) + (n - 1.0) / n * bytes / self.ring_rate(group)
    }

    /// Seconds of a gather whose every rank fetches all that it lacks through its own share of the
    /// NICs, whoever sits beside it.
    pub fn gather_alone(&self, group: &Group, bytes: f64) -> f64 {
        if !group.is_on_network() {
            return self.gather(group, bytes);
        }
        let n = f64::from(group.ranks);
        let rate = self.host_rate() / f64::from(self.cluster.host().devices);
        self.fabric.base + (n - 1.0) / n * bytes / rate
    }

    /// Seconds of an all-to-all in which every rank sends `bytes` in all.
    pub fn all_to_all(&self, group: &Group, bytes: f64) -> f64 {
        if group.ranks < 2 {
            return 0.0;
        }
        let n = f64::from(group.ranks);
        let (near, far) =
            (f64::from(group.per_host - 1) / n, f64::from(group.ranks - group.per_host) / n);
        let within = near * bytes / self.link_rate(group.per_host.max(2));
        let share = self.host_rate() / f64::from(self.cluster.host().devices);
        let latency = self.fabric.base + self.cluster.network_latency().0 * far.ceil();
        latency + within.max(far * bytes / share)
    }

    /// Seconds in which every device of a host sends `bytes` to a device `stride` further on.
    pub fn shift(&self, stride: u32, bytes: f64) -> f64 {
        let devices = self.cluster.host().devices;
        if stride < devices {
            return self.fabric.within(2).0 / 2.0 + bytes / self.link_rate(2);
        }
        let share = self.host_rate() / f64::from(devices);
        self.fabric.hop + self.cluster.network_latency().0 + bytes / share
    }

    /// Seconds in which every device of a group hands `bytes` to the next one around a ring.
    pub fn turn(&self, group: &Group, bytes: f64) -> f64 {
        if group.ranks < 2 {
            return 0.0;
        }
        let within = self.fabric.within(2).0 / 2.0 + bytes / self.link_rate(2);
        if !group.is_on_network() {
            return within;
        }
        // One edge of each ring leaves a host.
        let share = self.host_rate() / f64::from(group.sharing);
        let across = self.fabric.hop + self.cluster.network_latency().0 + bytes / share;
        if group.per_host > 1 { across.max(within) } else { across }
    }

    /// Seconds of an exchange of gradients among copies, as the carrier does it.
    pub fn gradients(&self, group: &Group, bytes: f64, practice: &Practice, halves: f64) -> f64 {
        if group.ranks < 2 {
            return 0.0;
        }
        match (practice.carrier, &practice.compression) {
            (Carrier::PerParameter, _) => halves * self.gather_alone(group, bytes),
            (Carrier::Nccl, None) if halves == 2.0 => self.all_reduce(group, bytes),
            (Carrier::Nccl, None) => halves * self.gather(group, bytes),
            _ => self.hierarchical(group, bytes, practice, halves),
        }
    }

    /// Seconds of a gather of parameters of `bytes` in all among copies, as the carrier does it.
    pub fn parameters(&self, group: &Group, bytes: f64, practice: &Practice) -> f64 {
        match practice.carrier {
            Carrier::Gradwire if group.ranks > 1 => {
                let local = Group { ranks: group.per_host, hosts: 1, sharing: 1, ..*group };
                let each = bytes / f64::from(group.per_host);
                let between = self.between_hosts(group, each, 1.0, practice.between_hosts);
                self.gather(&local, bytes) + between.half(false)
            }
            _ => self.gather(group, bytes),
        }
    }

    /// What the devices of a group exchange between hosts, each `each` bytes over its share of the
    /// NICs, made smaller by `shrunk`.
    fn between_hosts(
        &self,
        group: &Group,
        each: f64,
        shrunk: f64,
        algorithm: Option<Algorithm>,
    ) -> Exchange {
        let host = self.cluster.host();
        Exchange {
            ranks: group.hosts,
            bytes: each,
            wire: shrunk * f64::from(host.devices) / self.payload_rate(),
            latency: self.cluster.network_latency().0 + 4.0 * host.pcie.latency.0,
            reduce: 1.0 / host.reduce.0,
            frame: host.per_frame.0,
            algorithm,
        }
    }

    /// Reduce within each host, exchange between hosts (each device its part, over all NICs),
    /// gather within each host. What crosses the network is compressed, encoded once for each half.
    fn hierarchical(&self, group: &Group, bytes: f64, practice: &Practice, halves: f64) -> f64 {
        let local = Group { ranks: group.per_host, hosts: 1, sharing: 1, ..*group };
        let within = halves * self.gather(&local, bytes);
        if !group.is_on_network() {
            return within;
        }
        let compression = practice.compression.as_ref();
        let shrunk = compression.map_or(1.0, |it| it.bits / (8.0 * practice.gradient_bytes));
        // What is encoded is not rounded again at every hop of a ring.
        let algorithm = compression.map_or(practice.between_hosts, |_| Some(Algorithm::Direct));
        let each = bytes / f64::from(group.per_host);
        let exchange = self.between_hosts(group, each, shrunk, algorithm);
        let between = if halves == 2.0 { exchange.both() } else { exchange.half(true) };
        // Encoded for the owners, decoded by them, and what they send decoded by all: three passes.
        let coding = compression.map_or(0.0, |it| 1.5 * halves * each / it.rate);
        within + between + coding
    }

    /// Bytes that each NIC sends while copies exchange `bytes` of gradients.
    pub fn network_bytes(&self, group: &Group, bytes: f64, halves: f64, shrunk: f64) -> f64 {
        if !group.is_on_network() {
            return 0.0;
        }
        let hosts = f64::from(group.hosts);
        let nics = f64::from(self.cluster.host().nics);
        halves * shrunk * bytes * (hosts - 1.0) / hosts * f64::from(group.sharing) / nics
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::path::Path;

    fn cluster(hosts: u32) -> Cluster {
        let text = format!(
            "[[hosts]]\ncount = {hosts}\ndevice = \"a100-80g\"\ndevices = 8\nnvlink = \"300GB/s\"\n\
             nics = 4\nnic = \"200gbit\"\nwire = \"infiniband\"\n"
        );
        Cluster::parse(Path::new("test.toml"), &text).expect("a good file")
    }

    #[test]
    fn groups_know_who_shares_their_nics() {
        let cluster = cluster(8);
        let group = Group::of(&cluster, 8, 1);
        assert_eq!((group.per_host, group.hosts, group.is_on_network()), (8, 1, false));
        let group = Group::of(&cluster, 8, 8);
        assert_eq!((group.per_host, group.hosts, group.sharing), (1, 8, 8));
        let group = Group::of(&cluster, 16, 4);
        assert_eq!((group.per_host, group.hosts, group.sharing), (2, 8, 4));
    }

    proptest! {
        #[test]
        fn more_bytes_and_slower_nics_never_help(
            ranks in 2u32..64, stride in 0u32..4, bytes in 1f64..1e9, more in 1f64..1e9,
        ) {
            let (cluster, fabric) = (cluster(64), Fabric::default());
            let group = Group::of(&cluster, ranks, 1 << stride);
            let network = Network { cluster: &cluster, fabric: &fabric };
            let slow = cluster.with_nic_rate(gradwire_topology::Rate(1e9));
            let slower = Network { cluster: &slow, fabric: &fabric };
            let costs: [fn(&Network, &Group, f64) -> f64; 3] = [
                |network, group, bytes| network.all_reduce(group, bytes),
                |network, group, bytes| network.gather(group, bytes),
                |network, group, bytes| network.all_to_all(group, bytes),
            ];
            for cost in costs {
                let seconds = cost(&network, &group, bytes);
                prop_assert!(cost(&network, &group, bytes + more) >= seconds);
                prop_assert!(cost(&slower, &group, bytes) >= seconds);
            }
        }

        #[test]
        fn no_all_reduce_beats_the_nics(ranks in 9u32..512, bytes in 1f64..1e10) {
            let (cluster, fabric) = (cluster(64), Fabric::default());
            let group = Group::of(&cluster, ranks, 1);
            let network = Network { cluster: &cluster, fabric: &fabric };
            let hosts = f64::from(group.hosts);
            // What a host must send at least, even if its devices reduce for free.
            let bound = (hosts - 1.0) / hosts * bytes / 100e9;
            prop_assert!(network.all_reduce(&group, bytes) >= bound);
        }
    }
}
