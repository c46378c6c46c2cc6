//! The cluster as a graph of vertices and directed links, and the routes through it.

use crate::cluster::{Cluster, HostKind, LinkSpeed};

/// The position of a link in [`Graph::links`].
pub type LinkId = u32;

/// Something that links join.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Vertex {
    /// An accelerator; numbered host by host.
    Device(u32),
    /// The switch that joins the devices of a host directly.
    DeviceSwitch {
        /// Its host.
        host: u32,
    },
    /// A PCIe switch.
    PcieSwitch {
        /// Its host.
        host: u32,
        /// Which of the host's.
        index: u32,
    },
    /// A NUMA node: a socket with its memory.
    NumaNode {
        /// Its host.
        host: u32,
        /// Which of the host's.
        index: u32,
    },
    /// A network interface.
    Nic {
        /// Its host.
        host: u32,
        /// Which of the host's.
        index: u32,
    },
    /// A switch of a tier; tier `tiers.len()` is the one on top.
    Switch {
        /// Tier, counted from the hosts.
        tier: u32,
        /// Which of the tier's.
        index: u32,
    },
}

/// One direction of a connection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Where bytes enter.
    pub from: Vertex,
    /// Where they leave.
    pub to: Vertex,
    /// Bytes of payload per second.
    pub rate: f64,
    /// Seconds.
    pub latency: f64,
}

/// See the module's documentation.
#[derive(Clone, Debug)]
pub struct Graph {
    /// All links, two for each connection: away from the devices, then towards them.
    pub links: Vec<Link>,
    devices: Vec<DeviceLinks>,
    hosts: Vec<HostLinks>,
    /// For each tier and switch, its link up; the link down is the next one.
    switches: Vec<Vec<LinkId>>,
    tier_hosts: Vec<u32>,
}

/// A device's links up; the links down are the next ones.
#[derive(Clone, Copy, Debug)]
struct DeviceLinks {
    host: u32,
    local: u32,
    direct: Option<LinkId>,
    pcie: LinkId,
}

#[derive(Clone, Debug, Default)]
struct HostLinks {
    devices_per_switch: u32,
    switches_per_node: u32,
    devices: u32,
    /// From each PCIe switch to its NUMA node.
    switch: Vec<LinkId>,
    /// From each NUMA node but the first to the first.
    socket: Vec<LinkId>,
    /// From each NIC's PCIe switch to the NIC.
    to_nic: Vec<LinkId>,
    /// From each NIC to the first switch.
    nic: Vec<LinkId>,
    /// PCIe switch of each NIC.
    nic_switch: Vec<u32>,
}

impl Graph {
    /// The graph of a cluster: its size is proportional to the number of devices.
    pub fn of(cluster: &Cluster) -> Self {
        let mut graph = Graph {
            links: Vec::new(),
            devices: Vec::new(),
            hosts: Vec::new(),
            switches: Vec::new(),
            tier_hosts: cluster.tiers.iter().map(|tier| tier.hosts).collect(),
        };
        for kind in &cluster.hosts {
            for _ in 0..kind.count {
                graph.add_host(kind);
            }
        }
        graph.add_tiers(cluster);
        graph
    }

    /// Adds a connection; the link up has the number that is returned, the link down the next.
    fn join(&mut self, below: Vertex, above: Vertex, speed: &LinkSpeed, share: f64) -> LinkId {
        let latency = speed.latency.0;
        self.links.push(Link { from: below, to: above, rate: speed.up.0 * share, latency });
        self.links.push(Link { from: above, to: below, rate: speed.down.0 * share, latency });
        self.links.len() as LinkId - 2
    }

    fn add_host(&mut self, kind: &HostKind) {
        let host = self.hosts.len() as u32;
        let switches = kind.devices.div_ceil(kind.devices_per_switch);
        let nodes = kind.numa_nodes.min(switches);
        let mut links = HostLinks {
            devices_per_switch: kind.devices_per_switch,
            switches_per_node: switches.div_ceil(nodes),
            devices: kind.devices,
            ..Default::default()
        };
        for index in 0..switches {
            let node = Vertex::NumaNode { host, index: index / links.switches_per_node };
            let switch = Vertex::PcieSwitch { host, index };
            links.switch.push(self.join(switch, node, &kind.pcie, 1.0));
        }
        for index in 1..nodes {
            let (node, first) =
                (Vertex::NumaNode { host, index }, Vertex::NumaNode { host, index: 0 });
            links.socket.push(self.join(node, first, &kind.socket, 1.0));
        }
        for index in 0..kind.nics {
            let switch = index * switches / kind.nics;
            let nic = Vertex::Nic { host, index };
            links.nic_switch.push(switch);
            let behind = Vertex::PcieSwitch { host, index: switch };
            links.to_nic.push(self.join(behind, nic, &kind.pcie, 1.0));
            let above = Vertex::Switch { tier: 0, index: self.switch_above(0, host) };
            links.nic.push(self.join(nic, above, &kind.nic, kind.wire.payload_share()));
        }
        self.hosts.push(links);
        for local in 0..kind.devices {
            let device = Vertex::Device(self.devices.len() as u32);
            let behind = Vertex::PcieSwitch { host, index: local / kind.devices_per_switch };
            let pcie = self.join(device, behind, &kind.pcie, 1.0);
            let direct = kind
                .nvlink
                .map(|speed| self.join(device, Vertex::DeviceSwitch { host }, &speed, 1.0));
            self.devices.push(DeviceLinks { host, local, direct, pcie });
        }
    }

    fn switch_above(&self, tier: usize, host: u32) -> u32 {
        self.tier_hosts.get(tier).map_or(0, |hosts| host / hosts)
    }

    fn add_tiers(&mut self, cluster: &Cluster) {
        for (tier, entry) in cluster.tiers.iter().enumerate() {
            let switches = cluster.host_count().div_ceil(entry.hosts);
            let mut links = Vec::new();
            for index in 0..switches {
                let above = self.switch_above(tier + 1, index * entry.hosts);
                let here = Vertex::Switch { tier: tier as u32, index };
                let next = Vertex::Switch { tier: tier as u32 + 1, index: above };
                links.push(self.join(here, next, &entry.uplink, 1.0));
            }
            self.switches.push(links);
        }
    }

    /// Number of devices.
    pub fn device_count(&self) -> u32 {
        self.devices.len() as u32
    }

    /// The host of a device.
    pub fn host_of(&self, device: u32) -> u32 {
        self.devices[device as usize].host
    }

    /// The links from one device to another, in order; empty from a device to itself.
    ///
    /// `turn` chooses among the NICs of a host: 0 takes the one nearest to the device, others take
    /// those after it.
    ///
    /// # Panics
    /// If there is no such device.
    pub fn route(&self, from: u32, to: u32, turn: u32) -> Vec<LinkId> {
        let (source, target) = (self.devices[from as usize], self.devices[to as usize]);
        if from == to {
            return Vec::new();
        }
        if source.host != target.host {
            return self.between_hosts(source, target, turn);
        }
        if let (Some(up), Some(down)) = (source.direct, target.direct) {
            return vec![up, down + 1];
        }
        let host = &self.hosts[source.host as usize];
        let mut route = vec![source.pcie];
        let switch = |device: DeviceLinks| device.local / host.devices_per_switch;
        host.between_switches(switch(source), switch(target), &mut route);
        route.push(target.pcie + 1);
        route
    }

    fn between_hosts(&self, source: DeviceLinks, target: DeviceLinks, turn: u32) -> Vec<LinkId> {
        let mut route = vec![source.pcie];
        let host = &self.hosts[source.host as usize];
        let nic = host.nic_for(source.local, turn);
        let switch = source.local / host.devices_per_switch;
        host.between_switches(switch, host.nic_switch[nic], &mut route);
        route.extend([host.to_nic[nic], host.nic[nic]]);
        self.through_tiers(source.host, target.host, &mut route);
        let host = &self.hosts[target.host as usize];
        let nic = host.nic_for(target.local, turn);
        route.extend([host.nic[nic] + 1, host.to_nic[nic] + 1]);
        let switch = target.local / host.devices_per_switch;
        host.between_switches(host.nic_switch[nic], switch, &mut route);
        route.push(target.pcie + 1);
        route
    }

    fn through_tiers(&self, from: u32, to: u32, route: &mut Vec<LinkId>) {
        let meets = |tier: &usize| self.switch_above(*tier, from) == self.switch_above(*tier, to);
        let top = (0..=self.switches.len()).find(meets).unwrap_or(self.switches.len());
        for tier in 0..top {
            route.push(self.switches[tier][self.switch_above(tier, from) as usize]);
        }
        for tier in (0..top).rev() {
            route.push(self.switches[tier][self.switch_above(tier, to) as usize] + 1);
        }
    }

    /// What the route's links add up to: seconds until the first byte is there, and bytes per
    /// second of the narrowest.
    pub fn speed(&self, route: &[LinkId]) -> (f64, f64) {
        let links = route.iter().map(|link| &self.links[*link as usize]);
        links.fold((0.0, f64::INFINITY), |(latency, rate), link| {
            (latency + link.latency, rate.min(link.rate))
        })
    }
}

impl HostLinks {
    /// The NIC that a device uses.
    fn nic_for(&self, local: u32, turn: u32) -> usize {
        let nics = self.nic.len() as u32;
        ((local * nics / self.devices + turn) % nics) as usize
    }

    fn between_switches(&self, from: u32, to: u32, route: &mut Vec<LinkId>) {
        if from == to {
            return;
        }
        route.push(self.switch[from as usize]);
        let node = |switch: u32| (switch / self.switches_per_node) as usize;
        let (here, there) = (node(from), node(to));
        if here != there {
            if here > 0 {
                route.push(self.socket[here - 1]);
            }
            if there > 0 {
                route.push(self.socket[there - 1] + 1);
            }
        }
        route.push(self.switch[to as usize] + 1);
    }
}
