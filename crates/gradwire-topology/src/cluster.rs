//! A cluster as it is described: kinds of hosts, and the tiers of switches above them.

use crate::device::Device;
use crate::units::{Rate, Seconds};

/// How fast one link carries bytes in each direction, and how long the first byte takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkSpeed {
    /// Away from the device, up the tree.
    pub up: Rate,
    /// Towards the device.
    pub down: Rate,
    /// One way.
    pub latency: Seconds,
}

impl LinkSpeed {
    /// The same rate in both directions.
    pub const fn symmetric(rate: f64, latency: f64) -> Self {
        Self { up: Rate(rate), down: Rate(rate), latency: Seconds(latency) }
    }

    /// The slower direction.
    pub fn slower(&self) -> Rate {
        if self.up < self.down { self.up } else { self.down }
    }
}

/// What the bytes of a NIC are wrapped in: how much of the nominal rate is payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    /// TCP over Ethernet with frames of 1500 bytes: 1448 of 1538 bytes are payload.
    Ethernet,
    /// TCP over a link that is shaped in the kernel, which counts no preamble and no gap between
    /// frames: 1448 of 1514 bytes.
    Shaped,
    /// RoCE with jumbo frames: 4096 of 4178 bytes.
    Roce,
    /// InfiniBand with messages of 4096 bytes: 4096 of 4126.
    InfiniBand,
}

impl Wire {
    /// The share of the nominal rate that carries payload.
    pub fn payload_share(self) -> f64 {
        match self {
            Wire::Ethernet => 1448.0 / 1538.0,
            Wire::Shaped => 1448.0 / 1514.0,
            Wire::Roce => 4096.0 / 4178.0,
            Wire::InfiniBand => 4096.0 / 4126.0,
        }
    }

    /// Whether the kernel copies every byte (TCP) or the NIC does (remote direct memory access).
    pub fn is_direct(self) -> bool {
        matches!(self, Wire::Roce | Wire::InfiniBand)
    }
}

/// A number of equal hosts.
#[derive(Clone, Debug, PartialEq)]
pub struct HostKind {
    /// How many.
    pub count: u32,
    /// What its devices are.
    pub device: Device,
    /// Devices in each host.
    pub devices: u32,
    /// From each device to a switch that joins all devices of the host, if there is one.
    pub nvlink: Option<LinkSpeed>,
    /// From each device to its PCIe switch, from that to its NUMA node, and from NICs.
    pub pcie: LinkSpeed,
    /// Devices behind one PCIe switch.
    pub devices_per_switch: u32,
    /// NUMA nodes.
    pub numa_nodes: u32,
    /// Between two NUMA nodes.
    pub socket: LinkSpeed,
    /// Network interfaces.
    pub nics: u32,
    /// From each NIC to the first switch.
    pub nic: LinkSpeed,
    /// What the NIC's bytes are wrapped in.
    pub wire: Wire,
    /// How fast one process reduces received bytes into its own.
    pub reduce: Rate,
    /// What sending or receiving one frame costs a process.
    pub per_frame: Seconds,
    /// By how much each byte that a device sends delays its computation: where the processor that
    /// computes also drives the network. 0 where devices have nothing to do with it.
    pub delay_per_byte: Seconds,
}

impl HostKind {
    /// Payload that one NIC carries in its slower direction.
    pub fn nic_payload(&self) -> Rate {
        Rate(self.nic.slower().0 * self.wire.payload_share())
    }
}

/// Switches that join groups of hosts. Tiers are listed from the hosts up; what is above the last
/// one joins all.
#[derive(Clone, Debug, PartialEq)]
pub struct Tier {
    /// Such as `rack`, `pod`, `site`.
    pub name: String,
    /// Hosts below one of its switches, those of lower tiers included.
    pub hosts: u32,
    /// From each of its switches to what is above, all cables together.
    pub uplink: LinkSpeed,
}

/// See the module's documentation.
#[derive(Clone, Debug, PartialEq)]
pub struct Cluster {
    /// For people.
    pub name: String,
    /// Kinds of hosts, in the order of host numbers.
    pub hosts: Vec<HostKind>,
    /// Tiers of switches, from the hosts up.
    pub tiers: Vec<Tier>,
}

impl Cluster {
    /// Number of hosts.
    pub fn host_count(&self) -> u32 {
        self.hosts.iter().map(|kind| kind.count).sum()
    }

    /// Number of devices.
    pub fn device_count(&self) -> u32 {
        self.hosts.iter().map(|kind| kind.count * kind.devices).sum()
    }

    /// The kind of a host. Hosts are numbered kind by kind.
    ///
    /// # Panics
    /// If there is no such host.
    pub fn kind_of(&self, host: u32) -> &HostKind {
        let mut first = 0;
        for kind in &self.hosts {
            first += kind.count;
            if host < first {
                return kind;
            }
        }
        panic!("host {host} of {first}");
    }

    /// Host and local index of a device. Devices are numbered host by host.
    ///
    /// # Panics
    /// If there is no such device.
    pub fn place_of(&self, device: u32) -> (u32, u32) {
        let (mut first_device, mut first_host) = (0, 0);
        for kind in &self.hosts {
            let devices = kind.count * kind.devices;
            if device < first_device + devices {
                let within = device - first_device;
                return (first_host + within / kind.devices, within % kind.devices);
            }
            first_device += devices;
            first_host += kind.count;
        }
        panic!("device {device} of {first_device}");
    }

    /// The first kind of host: the only one in clusters that a training step is modelled on.
    pub fn host(&self) -> &HostKind {
        &self.hosts[0]
    }

    /// Whether all hosts are of one kind.
    pub fn is_uniform(&self) -> bool {
        self.hosts.len() == 1
    }

    /// The same cluster with another number of hosts of its first kind, and no others.
    #[must_use]
    pub fn resized(&self, hosts: u32) -> Self {
        let mut cluster = self.clone();
        cluster.hosts.truncate(1);
        cluster.hosts[0].count = hosts;
        cluster
    }

    /// The same cluster with NICs of another rate in both directions.
    #[must_use]
    pub fn with_nic_rate(&self, rate: Rate) -> Self {
        let mut cluster = self.clone();
        for kind in &mut cluster.hosts {
            kind.nic.up = rate;
            kind.nic.down = rate;
        }
        cluster
    }

    /// How much slower than its NICs a host's share of the uplinks is when all hosts send to other
    /// switches at once: 1 where no tier is oversubscribed.
    pub fn oversubscription(&self) -> f64 {
        let host = self.host();
        let from_hosts = host.nic.slower().0 * f64::from(host.nics);
        let ratio = |tier: &Tier| from_hosts * f64::from(tier.hosts) / tier.uplink.slower().0;
        let joined = self.tiers.iter().filter(|tier| tier.hosts < self.host_count());
        joined.map(ratio).fold(1.0, f64::max)
    }

    /// One-way latency between two devices on different hosts, the longest there is.
    pub fn network_latency(&self) -> Seconds {
        let tiers = self.tiers.iter().filter(|tier| tier.hosts < self.host_count());
        let above: f64 = tiers.map(|tier| tier.uplink.latency.0).sum();
        Seconds(2.0 * (self.host().nic.latency.0 + above))
    }
}
