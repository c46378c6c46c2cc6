//! `gradwire simulate --bytes`: one collective by the engine's core over modelled links.

use std::process::ExitCode;

use gradwire::{Codec, DataType};
use gradwire_schedule::{Algorithm, Collective, Hosts};
use gradwire_sim::network::{self, Disturbance, Operation, Outcome};
use gradwire_sim::planner::compressions;
use gradwire_topology::{Cluster, Graph, Link, Vertex};
use serde_json::{Value, json};

use super::conditions::Conditions;
use super::setting::{Setting, usage};
use super::sweep::{self, Row, SweepArgs, Value1};
use super::topo;
use crate::bench::shape::bus_factor;
use crate::bench::size;
use crate::failure::Failure;

/// Arguments for one collective.
#[derive(Debug, clap::Args)]
pub struct CollectiveArgs {
    /// Simulate one collective of this size by the engine's core instead of a training step;
    /// --straggler is then how many times as slow the NICs of one host are.
    #[arg(long, value_name = "SIZE", value_parser = size::parse, conflicts_with = "model")]
    pub bytes: Option<usize>,
    /// Which collective.
    #[arg(long, default_value = "all_reduce", requires = "bytes")]
    collective: Collective,
    /// How it is carried out: auto for what the engine chooses, or one of ring, tree,
    /// halving-doubling, direct, star, one-shot, hierarchical and hierarchical-ring.
    #[arg(long, default_value = "auto", requires = "bytes", value_parser = choice)]
    algorithm: Choice,
    /// How float32 values travel: int8, int6, int4 or fp16.
    #[arg(long, requires = "bytes")]
    codec: Option<Codec>,
    /// Simulate every rank, even those that behave like others.
    #[arg(long, requires = "bytes")]
    unfolded: bool,
    /// Each frame is late by up to this many microseconds.
    #[arg(long, default_value_t = 0.0, value_name = "US", requires = "bytes")]
    jitter: f64,
    /// Rank 0 starts so many microseconds after the others.
    #[arg(long, default_value_t = 0.0, value_name = "US", requires = "bytes")]
    late: f64,
    /// Seed of the jitter.
    #[arg(long, default_value_t = 0, requires = "bytes")]
    seed: u64,
}

/// An algorithm, or none for the engine's choice.
#[derive(Clone, Copy, Debug)]
struct Choice(Option<Algorithm>);

fn choice(text: &str) -> Result<Choice, String> {
    match text {
        "auto" => Ok(Choice(None)),
        name => name.parse().map(|it| Choice(Some(it))).map_err(|error| format!("{error}")),
    }
}

/// What was simulated, and what came of it.
struct Run {
    cluster: Cluster,
    operation: Operation,
    bytes: usize,
    outcome: Outcome,
    /// Capacity of each link in bytes per second.
    capacities: Vec<f64>,
}

/// Simulates one collective, or sweeps it.
///
/// # Errors
/// When the input makes no sense or a file can't be written.
pub fn run(
    args: &CollectiveArgs,
    bytes: usize,
    setting: &Setting,
    conditions: &Conditions,
    sweep: &SweepArgs,
    as_json: bool,
) -> anyhow::Result<ExitCode> {
    conditions.check().map_err(|error| usage("simulate", error))?;
    if conditions.failures > 0.0 {
        return Err(usage("simulate", "--failures are of a training run, not of --bytes").into());
    }
    if let Some(text) = &sweep.sweep {
        let (key, values) = sweep::parse(text).map_err(|error| usage("simulate", error))?;
        let rows = swept(args, bytes, setting, conditions, &key, &values)?;
        sweep::finish(sweep, &key, &COLUMNS, &[0], &rows, as_json)?;
        return Ok(ExitCode::SUCCESS);
    }
    let run = simulate(args, bytes, setting, conditions)?;
    if as_json {
        println!("{}", run.document());
    } else {
        run.print();
    }
    Ok(ExitCode::SUCCESS)
}

const COLUMNS: [&str; 3] = ["milliseconds", "bus_gbytes_per_s", "busiest_link_pct"];

fn swept(
    args: &CollectiveArgs,
    bytes: usize,
    setting: &Setting,
    conditions: &Conditions,
    key: &str,
    values: &[(String, Value1)],
) -> Result<Vec<Row>, Failure> {
    let mut rows = Vec::new();
    for (number, (text, value)) in values.iter().enumerate() {
        sweep::progress("sweep", number + 1, values.len());
        let (mut setting, mut conditions) = (setting.clone(), *conditions);
        match *value {
            Value1::Nic(rate) => setting.nic = Some(rate),
            Value1::Straggler(factor) => conditions.straggler = factor,
            Value1::Ranks(ranks) => setting.ranks = Some(ranks),
            Value1::Failures(_) | Value1::Batch(_) => {
                let text =
                    format!("{key} can't be swept with --bytes; nic, straggler and ranks can");
                return Err(usage("simulate", text));
            }
        }
        conditions.check().map_err(|error| usage("simulate", error))?;
        let run = simulate(args, bytes, &setting, &conditions)?;
        let columns =
            vec![run.outcome.seconds * 1e3, run.bus() / 1e9, 100.0 * run.busy(run.outcome.busiest)];
        rows.push(Row { text: text.clone(), number: value.number(), columns });
    }
    Ok(rows)
}

fn simulate(
    args: &CollectiveArgs,
    bytes: usize,
    setting: &Setting,
    conditions: &Conditions,
) -> Result<Run, Failure> {
    let cluster = setting.cluster()?;
    let ranks = setting.devices(&cluster);
    let slow = (conditions.straggler > 1.0).then_some((0, conditions.straggler));
    let late = (args.late > 0.0).then_some((0, args.late * 1e-6));
    let algorithm = algorithm(args, bytes, ranks, &cluster)?;
    let mut operation = Operation {
        collective: args.collective,
        codec: args.codec,
        disturbance: Disturbance {
            seed: args.seed,
            jitter: args.jitter.max(0.0) * 1e-6,
            late: late.into_iter().collect(),
            slow: slow.into_iter().collect(),
        },
        ..Operation::all_reduce(algorithm, ranks, bytes as u64)
    };
    if let Some(codec) = args.codec {
        operation.codec_rate = codec_rate(codec)?;
    }
    let outcome = network::simulate(&cluster, &operation, args.unfolded)
        .map_err(|error| usage("simulate", error))?;
    let capacities = network::capacities(&Graph::of(&cluster), &operation);
    Ok(Run { cluster, operation, bytes, outcome, capacities })
}

/// What was asked for, or what the engine chooses.
fn algorithm(
    args: &CollectiveArgs,
    bytes: usize,
    ranks: u32,
    cluster: &Cluster,
) -> Result<Algorithm, Failure> {
    let graph = Graph::of(cluster);
    let known = ranks.min(graph.device_count());
    let hosts = Hosts::by_label((0..known).map(|rank| graph.host_of(rank)));
    match (args.algorithm.0, args.codec) {
        (Some(algorithm), None) => Ok(algorithm),
        (None, None) => Ok(Algorithm::choose(args.collective, bytes, &hosts, hosts.count() > 1)),
        (None, Some(_)) => Ok(Algorithm::choose_for_codec(&hosts)),
        (Some(algorithm), Some(codec)) => match algorithm {
            Algorithm::Direct | Algorithm::Hierarchical => Ok(algorithm),
            _ if codec.is_linear() => Ok(algorithm),
            _ => {
                let text = format!(
                    "{codec} is never sent by {algorithm}, which would round it at \
                                    every hop; use direct or hierarchical"
                );
                Err(usage("simulate", text))
            }
        },
    }
}

/// Bytes in memory that a core encodes or decodes in a second, as measured.
fn codec_rate(codec: Codec) -> Result<f64, Failure> {
    let element = DataType::F32.size_bytes() as f64;
    let known = compressions(element);
    let row = known.iter().find(|it| it.name == codec.to_string());
    row.map(|it| it.rate).ok_or_else(|| {
        let names: Vec<String> = known
            .iter()
            .filter(|it| it.name.parse::<Codec>().is_ok())
            .map(|it| it.name.clone())
            .collect();
        let text = format!("no speed of {codec} was measured; there are {}", names.join(", "));
        usage("simulate", text)
    })
}

/// Links of one kind: what they join, and what they carry.
struct Kind {
    name: String,
    links: u32,
    bytes: f64,
    /// Bytes over the one that is busy longest, and its share of the time.
    most: (f64, f64),
}

impl Run {
    fn bandwidth(&self) -> f64 {
        self.bytes as f64 / self.outcome.seconds
    }

    fn bus(&self) -> f64 {
        self.bandwidth() * bus_factor(self.operation.collective, self.operation.ranks as usize)
    }

    fn busy(&self, (link, bytes): (u32, f64)) -> f64 {
        bytes / self.capacities[link as usize] / self.outcome.seconds
    }

    /// The links that carried something, by kind, in the order in which bytes pass them.
    fn kinds(&self) -> Vec<Kind> {
        let graph = Graph::of(&self.cluster);
        let mut kinds: Vec<Kind> = Vec::new();
        for &(link, bytes) in &self.outcome.carried {
            let name = kind_of(&graph.links[link as usize]);
            let at = kinds.iter().position(|it| it.name == name).unwrap_or_else(|| {
                kinds.push(Kind { name, links: 0, bytes: 0.0, most: (0.0, 0.0) });
                kinds.len() - 1
            });
            let (kind, share) = (&mut kinds[at], self.busy((link, bytes)));
            kind.links += 1;
            kind.bytes += bytes;
            if share > kind.most.1 {
                kind.most = (bytes, share);
            }
        }
        kinds
    }

    fn document(&self) -> Value {
        let graph = Graph::of(&self.cluster);
        let outcome = &self.outcome;
        let link = |&(link, bytes): &(u32, f64)| {
            let Link { from, to, .. } = graph.links[link as usize];
            json!({
                "from": topo::name(from),
                "to": topo::name(to),
                "bytes": bytes,
                "share": self.busy((link, bytes)),
            })
        };
        json!({
            "collective": self.operation.collective.to_string(),
            "algorithm": self.operation.algorithm.name(),
            "codec": self.operation.codec.map(|it| it.to_string()),
            "ranks": self.operation.ranks,
            "bytes": self.bytes,
            "seconds": outcome.seconds,
            "algorithm_bytes_per_s": self.bandwidth(),
            "bus_bytes_per_s": self.bus(),
            "frames": outcome.frames,
            "simulated_ranks": outcome.simulated,
            "busiest_link_bytes": outcome.busiest.1,
            "busiest_link_share": self.busy(outcome.busiest),
            "links": outcome.carried.iter().map(link).collect::<Vec<_>>(),
        })
    }

    fn print(&self) {
        let codec = self.operation.codec.map_or(String::new(), |codec| format!(", {codec}"));
        println!(
            "{} of {} bytes, {}{codec}, {} ranks on {}\n{:.3} ms, {:.3} GB/s, bus {:.3} GB/s",
            self.operation.collective,
            self.bytes,
            self.operation.algorithm,
            self.operation.ranks,
            self.cluster.name,
            self.outcome.seconds * 1e3,
            self.bandwidth() / 1e9,
            self.bus() / 1e9
        );
        println!("{} ranks simulated, {} frames\n", self.outcome.simulated, self.outcome.frames);
        println!(
            "{:<32}{:>7}{:>14}{:>14}{:>9}",
            "links", "count", "MB each", "busiest MB", "busy %"
        );
        for kind in self.kinds() {
            println!(
                "{:<32}{:>7}{:>14.3}{:>14.3}{:>9.1}",
                kind.name,
                kind.links,
                kind.bytes / f64::from(kind.links) / 1e6,
                kind.most.0 / 1e6,
                100.0 * kind.most.1
            );
        }
    }
}

fn kind_of(link: &Link) -> String {
    let name = |vertex: Vertex| match vertex {
        Vertex::Device(_) => "device".to_owned(),
        Vertex::DeviceSwitch { .. } => "device switch".to_owned(),
        Vertex::PcieSwitch { .. } => "PCIe switch".to_owned(),
        Vertex::NumaNode { .. } => "NUMA node".to_owned(),
        Vertex::Nic { .. } => "NIC".to_owned(),
        Vertex::Switch { tier, .. } => format!("switch of tier {tier}"),
    };
    format!("{} to {}", name(link.from), name(link.to))
}
