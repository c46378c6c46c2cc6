//! `gradwire simulate`: what a training step, or one collective, will take.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use gradwire_sim::planner::{Convergence, Limits, Wish, plan};
use gradwire_sim::step::{Calibration, Job, Layout, Practice, Transformer, simulate};
use gradwire_sim::timeline;
use gradwire_topology::Cluster;

use super::collective::{self, CollectiveArgs};
use super::conditions::Conditions;
use super::setting::{LayoutArgs, Setting, usage};
use super::show::Shown;
use super::sweep::{self, Row, SweepArgs, Value1};
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
    #[command(flatten)]
    collective: CollectiveArgs,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Runs `gradwire simulate`.
///
/// # Errors
/// When the input makes no sense or a file can't be written.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    if let Some(bytes) = args.collective.bytes {
        let Args { setting, conditions, collective, sweep, timeline, json, .. } = args;
        if timeline.is_some() {
            return Err(
                usage("simulate", "--timeline is of a training step, not of --bytes").into()
            );
        }
        return collective::run(&collective, bytes, &setting, &conditions, &sweep, json);
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
