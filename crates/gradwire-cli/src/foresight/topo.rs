//! `gradwire topo`: what a cluster file describes.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Subcommand;
use gradwire_topology::{Cluster, Graph, HostKind, LinkSpeed, Vertex, draw};
use serde_json::{Value, json};

use crate::failure::Failure;

/// Arguments of `gradwire topo`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Print a cluster file, and draw it.
    Show(ShowArgs),
}

#[derive(Debug, clap::Args)]
struct ShowArgs {
    /// The cluster file.
    file: PathBuf,
    /// Draw it into this file.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Show the links between two devices.
    #[arg(long, value_name = "FROM:TO")]
    route: Option<String>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Runs `gradwire topo`.
///
/// # Errors
/// When the file can't be used or the drawing can't be written.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let Command::Show(args) = args.command;
    let cluster = Cluster::read(&args.file).map_err(|fault| Failure::usage(fault.to_string()))?;
    if let Some(path) = &args.svg {
        fs::write(path, draw::svg(&cluster))
            .with_context(|| format!("topo: {}", path.display()))?;
    }
    let graph = Graph::of(&cluster);
    let route = args.route.as_deref().map(|text| route(&graph, text)).transpose()?;
    if args.json {
        println!("{}", document(&cluster, &graph, route));
        return Ok(ExitCode::SUCCESS);
    }
    print!("{}", draw::print(&cluster));
    if let Some(route) = route {
        println!("\nroute\n{}", serde_json::to_string_pretty(&route)?);
    }
    Ok(ExitCode::SUCCESS)
}

fn route(graph: &Graph, text: &str) -> Result<Value, Failure> {
    let devices = graph.device_count();
    let wrong = || {
        Failure::usage(format!(
            "topo: `{text}` is no route; write two devices below {devices}, such as 0:{}",
            devices - 1
        ))
    };
    let (from, to) = text.split_once(':').ok_or_else(wrong)?;
    let device = |text: &str| text.parse().ok().filter(|it: &u32| *it < devices).ok_or_else(wrong);
    let links = graph.route(device(from)?, device(to)?, 0);
    let (latency, rate) = graph.speed(&links);
    let hops: Vec<Value> = links
        .iter()
        .map(|link| &graph.links[*link as usize])
        .map(|link| json!({ "from": name(link.from), "to": name(link.to), "bytes_per_s": link.rate }))
        .collect();
    Ok(json!({
        "latency_s": latency,
        "bytes_per_s": if rate.is_finite() { Some(rate) } else { None },
        "links": hops,
    }))
}

/// What a vertex is called.
pub fn name(vertex: Vertex) -> String {
    match vertex {
        Vertex::Device(device) => format!("device {device}"),
        Vertex::DeviceSwitch { host } => format!("host {host} device switch"),
        Vertex::PcieSwitch { host, index } => format!("host {host} PCIe switch {index}"),
        Vertex::NumaNode { host, index } => format!("host {host} NUMA node {index}"),
        Vertex::Nic { host, index } => format!("host {host} NIC {index}"),
        Vertex::Switch { tier, index } => format!("switch {tier}.{index}"),
    }
}

fn document(cluster: &Cluster, graph: &Graph, route: Option<Value>) -> Value {
    json!({
        "name": cluster.name,
        "hosts": cluster.host_count(),
        "devices": cluster.device_count(),
        "links": graph.links.len(),
        "oversubscription": cluster.oversubscription(),
        "kinds": cluster.hosts.iter().map(kind).collect::<Vec<_>>(),
        "tiers": cluster.tiers.iter().map(|tier| json!({
            "name": tier.name,
            "hosts": tier.hosts,
            "uplink": link(&tier.uplink),
        })).collect::<Vec<_>>(),
        "route": route,
    })
}

fn kind(kind: &HostKind) -> Value {
    json!({
        "count": kind.count,
        "device": kind.device.name,
        "devices": kind.devices,
        "nvlink": kind.nvlink.as_ref().map(link),
        "pcie": link(&kind.pcie),
        "numa_nodes": kind.numa_nodes,
        "nics": kind.nics,
        "nic": link(&kind.nic),
        "nic_payload_bytes_per_s": kind.nic_payload().0,
    })
}

fn link(speed: &LinkSpeed) -> Value {
    json!({
        "up_bytes_per_s": speed.up.0,
        "down_bytes_per_s": speed.down.0,
        "latency_s": speed.latency.0,
    })
}
