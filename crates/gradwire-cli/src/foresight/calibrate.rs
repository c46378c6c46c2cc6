//! `gradwire calibrate`: makes predictions fit the steps that you have measured.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use gradwire_sim::step::{Calibration, Job};
use gradwire_sim::validation::fit::{FEW, RowFit, fit_and_judge};
use gradwire_sim::validation::tables::Measured;
use serde::Deserialize;
use serde_json::{Value, json};

use super::setting::{LayoutArgs, RecomputeArg, Setting, usage};
use super::sweep::progress;
use crate::failure::Failure;

/// Arguments of `gradwire calibrate`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    setting: Setting,
    #[command(flatten)]
    layout: LayoutArgs,
    /// The steps: CSV with a column `seconds` of whole steps, and what differs between them of
    /// model, ranks, batch, sequence, tp, pp, cp, ep, interleave, micro_batch, zero, recompute;
    /// everything else is as the arguments say.
    #[arg(long, value_name = "FILE")]
    measured: PathBuf,
    /// Where to write the constants, for `--calibration` of simulate and plan.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// A measured step as a user writes it down.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    seconds: f64,
    model: Option<String>,
    ranks: Option<u32>,
    batch: Option<u32>,
    sequence: Option<u64>,
    tp: Option<u32>,
    pp: Option<u32>,
    cp: Option<u32>,
    ep: Option<u32>,
    interleave: Option<u32>,
    micro_batch: Option<u32>,
    zero: Option<u8>,
    recompute: Option<RecomputeArg>,
}

/// A step with the line of the file that it is from.
struct Step {
    line: u64,
    measured: Measured,
}

/// Runs `gradwire calibrate`.
///
/// # Errors
/// When the file can't be read, a row makes no sense, or the constants can't be written.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    if args.setting.step_seconds.is_some() {
        let text = "--step-seconds is for simulate; measured steps stand in --measured";
        return Err(usage("calibrate", text).into());
    }
    let start = args.setting.calibration(&args.setting.cluster()?)?;
    let steps = steps(&args)?;
    let measured: Vec<Measured> = steps.iter().map(|step| step.measured.clone()).collect();
    let (calibration, fits) = fit_and_judge(&measured, &start, |done, all| {
        progress("fitting", done, all);
    });
    if let Some(path) = &args.out {
        fs::write(path, serde_json::to_string_pretty(&calibration)?)
            .with_context(|| path.display().to_string())?;
    }
    if args.json {
        println!("{}", document(&steps, &fits, &calibration));
    } else {
        print_steps(&steps, &fits);
        print_constants(&start, &calibration);
    }
    Ok(ExitCode::SUCCESS)
}

/// The steps of the file, each with what it leaves open as the arguments say.
fn steps(args: &Args) -> Result<Vec<Step>, Failure> {
    let path = args.measured.display();
    let wrong = |error: String| usage("calibrate", format!("{path}: {error}"));
    let reader = csv::ReaderBuilder::new()
        .comment(Some(b'#'))
        .trim(csv::Trim::All)
        .from_path(&args.measured);
    let mut reader = reader.map_err(|error| wrong(error.to_string()))?;
    let headers = reader.headers().map_err(|error| wrong(error.to_string()))?.clone();
    let mut steps = Vec::new();
    for record in reader.records() {
        let record = record.map_err(|error| wrong(error.to_string()))?;
        let line = record.position().map_or(0, csv::Position::line);
        let row: Row =
            record.deserialize(Some(&headers)).map_err(|error| wrong(error.to_string()))?;
        let measured =
            measured(args, &row).map_err(|error| wrong(format!("line {line}: {error}")))?;
        steps.push(Step { line, measured });
    }
    if steps.is_empty() {
        return Err(wrong(
            "there are no rows; write a line `seconds,tp,pp` and one for each step".to_owned(),
        ));
    }
    Ok(steps)
}

fn measured(args: &Args, row: &Row) -> Result<Measured, String> {
    if !(row.seconds > 0.0 && row.seconds.is_finite()) {
        return Err(format!("seconds {} must be above 0", row.seconds));
    }
    let (given, layout) = (&args.setting, &args.layout);
    let setting = Setting {
        model: row.model.clone().or(given.model.clone()),
        ranks: row.ranks.or(given.ranks),
        batch: row.batch.or(given.batch),
        sequence: row.sequence.or(given.sequence),
        ..given.clone()
    };
    let layout = LayoutArgs {
        tp: row.tp.or(layout.tp),
        pp: row.pp.or(layout.pp),
        cp: row.cp.or(layout.cp),
        ep: row.ep.or(layout.ep),
        interleave: row.interleave.or(layout.interleave),
        micro_batch: row.micro_batch.or(layout.micro_batch),
        zero: row.zero.or(layout.zero),
        recompute: row.recompute.or(layout.recompute),
        ..layout.clone()
    };
    let cluster = setting.cluster().map_err(|error| error.to_string())?;
    let model = setting.model().map_err(|error| error.to_string())?;
    let devices = setting.devices(&cluster);
    let mut practice = setting.practice();
    layout.adjust(&mut practice)?;
    let layout = layout.layout(devices, setting.batch(&model, devices))?;
    layout.check(&model, &cluster)?;
    let (group, scheme) = (model.name.clone(), layout.name());
    let job = Job { model, layout, practice };
    Ok(Measured { job, cluster, seconds: row.seconds, group, scheme })
}

/// In per cent, of what was measured.
fn error_pct(ratio: f64) -> f64 {
    100.0 * (ratio - 1.0)
}

/// The mean over rows of the error's size, in per cent.
fn mean_pct(ratios: impl Iterator<Item = f64>) -> f64 {
    let errors: Vec<f64> = ratios.map(|ratio| error_pct(ratio).abs()).collect();
    errors.iter().sum::<f64>() / errors.len().max(1) as f64
}

fn document(steps: &[Step], fits: &[RowFit], calibration: &Calibration) -> Value {
    let row = |(step, fit): (&Step, &RowFit)| {
        json!({
            "line": step.line,
            "model": step.measured.group,
            "layout": step.measured.scheme,
            "ranks": step.measured.job.layout.devices(),
            "measured_s": step.measured.seconds,
            "error_before_pct": error_pct(fit.before),
            "error_fitted_pct": error_pct(fit.fitted),
            "error_left_out_pct": fit.left_out.map(error_pct),
        })
    };
    let left_out = fits.iter().map(|fit| fit.left_out).collect::<Option<Vec<f64>>>();
    json!({
        "rows": steps.iter().zip(fits).map(row).collect::<Vec<_>>(),
        "mean_error_before_pct": mean_pct(fits.iter().map(|fit| fit.before)),
        "mean_error_fitted_pct": mean_pct(fits.iter().map(|fit| fit.fitted)),
        "mean_error_left_out_pct": left_out.map(|it| mean_pct(it.into_iter())),
        "calibration": calibration,
    })
}

fn print_steps(steps: &[Step], fits: &[RowFit]) {
    println!(
        "{:>5}  {:<20}{:<28}{:>6}{:>12}{:>10}{:>10}{:>10}",
        "line", "model", "layout", "ranks", "measured s", "before %", "fitted %", "left out %"
    );
    let errors = |before: f64, fitted: f64, left_out: Option<f64>| {
        let left_out = left_out.map_or("-".to_owned(), |it| format!("{it:+.1}"));
        println!("{before:>+10.1}{fitted:>+10.1}{left_out:>11}");
    };
    for (step, fit) in steps.iter().zip(fits) {
        let Measured { group, scheme, seconds, job, .. } = &step.measured;
        print!(
            "{:>5}  {group:<20}{scheme:<28}{:>6}{seconds:>12.4}",
            step.line,
            job.layout.devices()
        );
        errors(error_pct(fit.before), error_pct(fit.fitted), fit.left_out.map(error_pct));
    }
    let left_out = fits.iter().map(|fit| fit.left_out).collect::<Option<Vec<f64>>>();
    print!("{:>5}  {:<66}", "", "mean size of the error");
    errors(
        mean_pct(fits.iter().map(|fit| fit.before)),
        mean_pct(fits.iter().map(|fit| fit.fitted)),
        left_out.map(|it| mean_pct(it.into_iter())),
    );
    println!("\nleft out: predicted from the other rows, as a step that was not measured would be");
}

fn print_constants(start: &Calibration, calibration: &Calibration) {
    println!("\n{:<12}{:>12}{:>12}", "constant", "before", "fitted");
    for (constant, _) in FEW {
        let (before, after) = (constant.value(start), constant.value(calibration));
        println!("{:<12}{before:>12.4e}{after:>12.4e}", constant.name);
    }
}
