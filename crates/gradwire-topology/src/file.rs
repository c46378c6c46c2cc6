//! Cluster files: TOML that a person can write in ten lines.
//!
//! ```toml
//! name = "8 boxes in two racks"
//!
//! [[hosts]]
//! count = 8
//! device = "rtx4090"
//! devices = 4
//! nic = "10gbit"
//!
//! [[tiers]]
//! name = "rack"
//! hosts = 4
//! uplink = "20gbit"
//! ```
//!
//! Everything that is left out has a default: see the fields of `HostsEntry` and `TierEntry`. A
//! link is a rate, or a table such as `{ up = "100mbit", down = "1gbit", latency = "5ms" }`.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use toml::Spanned;

use crate::cluster::{Cluster, HostKind, LinkSpeed, Tier, Wire};
use crate::device::Device;
use crate::fault::FileFault;
use crate::units::{Bytes, Flops, Rate, Seconds};

/// Most devices of a cluster: what the schedules are made for.
const MAX_DEVICES: u64 = 1 << 20;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ClusterFile {
    name: Option<String>,
    hosts: Spanned<Vec<HostsEntry>>,
    #[serde(default)]
    tiers: Vec<TierEntry>,
    #[serde(default)]
    devices: BTreeMap<String, DeviceEntry>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct HostsEntry {
    #[serde(default = "one")]
    count: Spanned<u32>,
    device: Spanned<String>,
    #[serde(default = "one")]
    devices: Spanned<u32>,
    nvlink: Option<LinkEntry>,
    pcie: Option<LinkEntry>,
    devices_per_switch: Option<Spanned<u32>>,
    numa_nodes: Option<Spanned<u32>>,
    socket: Option<LinkEntry>,
    nics: Option<Spanned<u32>>,
    nic: Spanned<LinkEntry>,
    wire: Option<WireEntry>,
    reduce: Option<Rate>,
    per_frame: Option<Seconds>,
    delay_per_byte: Option<Seconds>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TierEntry {
    name: String,
    hosts: Spanned<u32>,
    uplink: Spanned<LinkEntry>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DeviceEntry {
    peak: Flops,
    memory: Bytes,
    bandwidth: Rate,
    #[serde(default = "one_multiprocessor")]
    multiprocessors: u32,
    #[serde(default)]
    dollars_per_hour: f64,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum WireEntry {
    Ethernet,
    Shaped,
    Roce,
    Infiniband,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(untagged, expecting = "a rate such as \"100gbit\" or { up, down, latency }")]
enum LinkEntry {
    Rate(Rate),
    Full { up: Rate, down: Option<Rate>, latency: Option<Seconds> },
}

impl LinkEntry {
    fn speed(self, latency: f64) -> LinkSpeed {
        match self {
            LinkEntry::Rate(rate) => LinkSpeed::symmetric(rate.0, latency),
            LinkEntry::Full { up, down, latency: given } => LinkSpeed {
                up,
                down: down.unwrap_or(up),
                latency: given.unwrap_or(Seconds(latency)),
            },
        }
    }
}

fn one() -> Spanned<u32> {
    Spanned::new(0..0, 1)
}

fn one_multiprocessor() -> u32 {
    1
}

impl Cluster {
    /// Reads a cluster file.
    ///
    /// # Errors
    /// When it can't be read or used; the fault points at the line.
    pub fn read(path: &Path) -> Result<Self, FileFault> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| FileFault::whole(path, error.to_string()))?;
        Self::parse(path, &text)
    }

    /// Reads the text of a cluster file; `path` is what faults call it.
    ///
    /// # Errors
    /// As [`Cluster::read`].
    pub fn parse(path: &Path, text: &str) -> Result<Self, FileFault> {
        let file: ClusterFile =
            toml::from_str(text).map_err(|error| FileFault::toml(path, text, &error))?;
        let reader = Reader { path, text, devices: &file.devices };
        if file.hosts.get_ref().is_empty() {
            return Err(reader.fault(&file.hosts, "there are no hosts"));
        }
        let hosts: Vec<HostKind> = file
            .hosts
            .get_ref()
            .iter()
            .map(|entry| reader.host(entry))
            .collect::<Result<_, _>>()?;
        let devices: u64 =
            hosts.iter().map(|kind| u64::from(kind.count) * u64::from(kind.devices)).sum();
        if devices > MAX_DEVICES {
            let text = format!("{devices} devices; the limit is {MAX_DEVICES}");
            return Err(reader.fault(&file.hosts, text));
        }
        let tiers = reader.tiers(&file.tiers)?;
        let default = path.file_stem().map_or_else(String::new, |stem| stem.display().to_string());
        Ok(Cluster { name: file.name.unwrap_or(default), hosts, tiers })
    }
}

struct Reader<'a> {
    path: &'a Path,
    text: &'a str,
    devices: &'a BTreeMap<String, DeviceEntry>,
}

impl Reader<'_> {
    fn fault<T>(&self, at: &Spanned<T>, message: impl Into<String>) -> FileFault {
        FileFault::at(self.path, self.text, at.span(), message)
    }

    fn positive(&self, number: &Spanned<u32>, what: &str) -> Result<u32, FileFault> {
        match *number.get_ref() {
            0 => Err(self.fault(number, format!("{what} is 0, must be at least 1"))),
            number => Ok(number),
        }
    }

    fn link(&self, entry: &Spanned<LinkEntry>, latency: f64) -> Result<LinkSpeed, FileFault> {
        let speed = entry.get_ref().speed(latency);
        if speed.slower().0 > 0.0 {
            return Ok(speed);
        }
        Err(self.fault(entry, "a link that carries nothing; its rate must be above 0"))
    }

    fn device(&self, name: &Spanned<String>) -> Result<Device, FileFault> {
        if let Some(entry) = self.devices.get(name.get_ref()) {
            return Ok(Device {
                name: name.get_ref().clone(),
                peak: entry.peak,
                memory: entry.memory,
                bandwidth: entry.bandwidth,
                multiprocessors: entry.multiprocessors.max(1),
                dollars_per_hour: entry.dollars_per_hour,
            });
        }
        Device::named(name.get_ref()).ok_or_else(|| {
            let known: Vec<&str> = Device::names().collect();
            let text = format!(
                "unknown device `{}`; known are {}, or describe it under [devices.{}]",
                name.get_ref(),
                known.join(", "),
                name.get_ref()
            );
            self.fault(name, text)
        })
    }

    fn host(&self, entry: &HostsEntry) -> Result<HostKind, FileFault> {
        let devices = self.positive(&entry.devices, "devices")?;
        let count = self.positive(&entry.count, "count")?;
        let optional = |number: &Option<Spanned<u32>>, what, default| {
            number.as_ref().map_or(Ok(default), |number| self.positive(number, what))
        };
        let wire = match entry.wire.unwrap_or(WireEntry::Ethernet) {
            WireEntry::Ethernet => Wire::Ethernet,
            WireEntry::Shaped => Wire::Shaped,
            WireEntry::Roce => Wire::Roce,
            WireEntry::Infiniband => Wire::InfiniBand,
        };
        let nic_latency = if wire.is_direct() { 2e-6 } else { 12e-6 };
        Ok(HostKind {
            count,
            device: self.device(&entry.device)?,
            devices,
            nvlink: entry.nvlink.map(|link| link.speed(1e-6)),
            pcie: entry.pcie.map_or(LinkSpeed::symmetric(25e9, 1e-6), |link| link.speed(1e-6)),
            devices_per_switch: optional(&entry.devices_per_switch, "devices_per_switch", 2)?,
            numa_nodes: optional(&entry.numa_nodes, "numa_nodes", 1 + u32::from(devices > 4))?,
            socket: entry.socket.map_or(LinkSpeed::symmetric(30e9, 1e-6), |it| it.speed(1e-6)),
            nics: optional(&entry.nics, "nics", 1)?,
            nic: self.link(&entry.nic, nic_latency)?,
            wire,
            reduce: entry.reduce.unwrap_or(Rate(6e9)),
            per_frame: entry.per_frame.unwrap_or(Seconds(3e-6)),
            delay_per_byte: entry.delay_per_byte.unwrap_or(Seconds(0.0)),
        })
    }

    fn tiers(&self, entries: &[TierEntry]) -> Result<Vec<Tier>, FileFault> {
        let mut below = 1;
        let mut tiers = Vec::new();
        for entry in entries {
            let hosts = self.positive(&entry.hosts, "hosts")?;
            if hosts % below != 0 || hosts == below && !tiers.is_empty() {
                let text = format!(
                    "a `{}` has {hosts} hosts, must be a multiple of the {below} of the tier below",
                    entry.name
                );
                return Err(self.fault(&entry.hosts, text));
            }
            let uplink = self.link(&entry.uplink, 1e-6)?;
            tiers.push(Tier { name: entry.name.clone(), hosts, uplink });
            below = hosts;
        }
        Ok(tiers)
    }
}
