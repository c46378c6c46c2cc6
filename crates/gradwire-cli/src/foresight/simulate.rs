//! `gradwire simulate`: what a training step, or one collective, will take.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use gradwire_schedule::{Algorithm, Collective};
use gradwire_sim::network::{self, Disturbance, Operation};
use gradwire_sim::planner::{Convergence, Limits, Wish, plan};
use gradwire_sim::step::{Calibration, Job, Layout, Practice, Transformer, simulate};
use gradwire_sim::timeline;
use gradwire_topology::{Cluster, Graph};
use serde_json::json;

use super::conditions::Conditions;
use super::setting::{LayoutArgs, Setting, usage};
use super::show::Shown;
use super::sweep::{self, Row, SweepArgs, Value1};
use crate::bench::size;
use crate::failure::Failure;

/// Arguments of `gradwire simulate`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    setting: Setting,
    #[command(flatten)]
    layout: LayoutArgs,
    #[command(flatten)]
    conditions: Conditions,
    #[command(flatten)]
    sweep: SweepArgs,
    /// Write the step as a timeline for ui.perfetto.dev.
    #[arg(long, value_name = "FILE")]
    timeline: Option<PathBuf>,
    /// Simulate one collective of this size by the engine's core instead of a training step.
    #[arg(long, value_name = "SIZE", value_parser = size::parse, conflicts_with = "model")]
    bytes: Option<usize>,
    /// Which collective.
    #[arg(long, default_value = "all_reduce", requires = "bytes")]
    collective: Collective,
    /// How it is carried out.
    #[arg(long, default_value = "ring", requires = "bytes")]
    algorithm: Algorithm,
    /// Simulate every rank, even those that behave like others.
    #[arg(long, requires = "bytes")]
    unfolded: bool,
    /// Each frame is late by up to this many microseconds.
    #[arg(long, default_value_t = 0.0, value_name = "US", requires = "bytes")]
    jitter: f64,
    /// Seed of the jitter.
    #[arg(long, default_value_t = 0, requires = "bytes")]
    seed: u64,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Runs `gradwire simulate`.
///
/// # Errors
/// When the input makes no sense or a file can't be written.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    if let Some(bytes) = args.bytes {
        return collective(&args, bytes);
    }
    args.conditions.check().map_err(|error| usage("simulate", error))?;
    if let Some(text) = &args.sweep.sweep {
        let (key, values) = sweep::parse(text).map_err(|error| usage("simulate", error))?;
        return swept(&args, &key, &values);
    }
    let (job, cluster, calibration) = job(&args, &args.setting)?;
    let report =
        simulate(&job, &cluster, &calibration).map_err(|error| usage("simulate", error))?;
    if let Some(path) = &args.timeline {
        fs::write(path, timeline::trace(&report).to_string())
            .with_context(|| path.display().to_string())?;
    }
    let devices = job.layout.devices();
    let operations = job.model.step_operations(f64::from(job.layout.batch));
    let peak = cluster.host().device.peak.0;
    let shown = Shown {
        job: &job,
        cluster: &cluster.name,
        effect: args.conditions.effect(&report, devices),
        null_s: operations / f64::from(devices) / (0.5 * peak),
        report: &report,
    };
    if args.json {
        println!("{}", shown.json());
    } else {
        shown.print();
    }
    Ok(ExitCode::SUCCESS)
}

/// The job as it was asked for; where no layout is given, the one that a quick plan finds best.
fn job(args: &Args, setting: &Setting) -> Result<(Job, Cluster, Calibration), Failure> {
    let cluster = setting.cluster()?;
    let model = setting.model()?;
    let mut calibration = setting.calibration(&cluster)?;
    let devices = setting.devices(&cluster);
    let batch = setting.batch(&model, devices);
    let mut practice = setting.practice();
    args.layout.adjust(&mut practice).map_err(|error| usage("simulate", error))?;
    let layout = if args.layout.is_given() || devices == 1 {
        args.layout.layout(devices, batch).map_err(|error| usage("simulate", error))?
    } else {
        best_layout(&model, devices, batch, &practice, &cluster, &calibration)?
    };
    let job = Job { model, layout, practice };
    let paced = setting.keep_pace(&job, &cluster, &mut calibration);
    paced.map_err(|error| usage("simulate", error))?;
    Ok((job, cluster, calibration))
}

fn best_layout(
    model: &Transformer,
    devices: u32,
    batch: u32,
    practice: &Practice,
    cluster: &Cluster,
    calibration: &Calibration,
) -> Result<Layout, Failure> {
    let wish = Wish {
        model: model.clone(),
        devices,
        batch,
        tokens: 1e9,
        // The layout is that of an exact exchange: a plan would have to admit what is lost.
        practice: Practice { compression: None, local_steps: 1, ..practice.clone() },
        layout: None,
        limits: Limits { micro_batch: 4, ..Limits::default() },
        convergence: Convergence::default(),
    };
    let plan = plan(&wish, cluster, calibration, |done, all| {
        sweep::progress("looking for a layout", done, all);
    });
    Ok(plan.map_err(|error| usage("simulate", error))?.layouts[0].layout)
}

const COLUMNS: [&str; 6] =
    ["step_s", "communication_pct", "exposed_s", "mfu_pct", "tokens_per_second", "goodput_pct"];

fn swept(args: &Args, key: &str, values: &[(String, Value1)]) -> anyhow::Result<ExitCode> {
    let mut rows = Vec::new();
    for (number, (text, value)) in values.iter().enumerate() {
        sweep::progress("sweep", number + 1, values.len());
        let (mut setting, mut conditions) = (args.setting.clone(), args.conditions);
        match *value {
            Value1::Nic(rate) => setting.nic = Some(rate),
            Value1::Straggler(factor) => conditions.straggler = factor,
            Value1::Failures(rate) => conditions.failures = rate,
            Value1::Ranks(ranks) => setting.ranks = Some(ranks),
            Value1::Batch(batch) => setting.batch = Some(batch),
        }
        conditions.check().map_err(|error| usage("simulate", error))?;
        let (job, cluster, calibration) = job(args, &setting)?;
        let report =
            simulate(&job, &cluster, &calibration).map_err(|error| usage("simulate", error))?;
        let effect = conditions.effect(&report, job.layout.devices());
        let slower = report.step_s / effect.step_s;
        let columns = vec![
            effect.step_s,
            100.0 * report.communication_share * slower,
            report.exposed_s(),
            100.0 * report.mfu * slower,
            report.tokens_per_second * slower * effect.goodput,
            100.0 * effect.goodput,
        ];
        rows.push(Row { text: text.clone(), number: value.number(), columns });
    }
    sweep::finish(&args.sweep, key, &COLUMNS, &[0, 1], &rows, args.json)?;
    Ok(ExitCode::SUCCESS)
}

/// One collective by the engine's core.
fn collective(args: &Args, bytes: usize) -> anyhow::Result<ExitCode> {
    let cluster = args.setting.cluster()?;
    let ranks = args.setting.devices(&cluster);
    let operation = Operation {
        collective: args.collective,
        disturbance: Disturbance {
            seed: args.seed,
            jitter: args.jitter.max(0.0) * 1e-6,
            ..Disturbance::default()
        },
        ..Operation::all_reduce(args.algorithm, ranks, bytes as u64)
    };
    let outcome = network::simulate(&cluster, &operation, args.unfolded)
        .map_err(|error| usage("simulate", error))?;
    let algorithm_bandwidth = bytes as f64 / outcome.seconds;
    let n = f64::from(ranks);
    let bus = algorithm_bandwidth * 2.0 * (n - 1.0) / n;
    let graph = Graph::of(&cluster);
    let busiest = &graph.links[outcome.busiest.0 as usize];
    if args.json {
        let document = json!({
            "collective": args.collective.to_string(),
            "algorithm": args.algorithm.name(),
            "ranks": ranks,
            "bytes": bytes,
            "seconds": outcome.seconds,
            "algorithm_bytes_per_s": algorithm_bandwidth,
            "bus_bytes_per_s": bus,
            "frames": outcome.frames,
            "simulated_ranks": outcome.simulated,
            "busiest_link_bytes": outcome.busiest.1,
            "busiest_link_share": outcome.busiest.1 / busiest.rate / outcome.seconds,
            "links": outcome.carried.len(),
        });
        println!("{document}");
        return Ok(ExitCode::SUCCESS);
    }
    println!(
        "{} of {bytes} bytes, {}, {ranks} ranks on {}\n{:.3} ms, {:.3} GB/s, bus {:.3} GB/s",
        args.collective,
        args.algorithm.name(),
        cluster.name,
        outcome.seconds * 1e3,
        algorithm_bandwidth / 1e9,
        bus / 1e9
    );
    println!(
        "{} ranks simulated, {} frames; the busiest link carries {:.3} GB and is busy {:.0} % of the time",
        outcome.simulated,
        outcome.frames,
        outcome.busiest.1 / 1e9,
        100.0 * outcome.busiest.1 / busiest.rate / outcome.seconds
    );
    Ok(ExitCode::SUCCESS)
}
