//! `gradwire plan`: which layout and settings are best.

use std::process::ExitCode;

use gradwire_sim::planner::{Convergence, Limits, Plan, Wish, plan};
use gradwire_sim::step::Job;
use serde_json::{Value, json};

use super::setting::{LayoutArgs, Setting, usage};
use super::show;
use super::sweep::{self, Row, SweepArgs, Value1};

/// Arguments of `gradwire plan`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    setting: Setting,
    /// A layout, where only settings of communication are to be searched.
    #[command(flatten)]
    layout: LayoutArgs,
    #[command(flatten)]
    sweep: SweepArgs,
    /// Tokens to train on, for time and cost in all; 20 for each parameter by default.
    #[arg(long, value_name = "N")]
    tokens: Option<f64>,
    /// Most sequences of a microbatch that a plan may choose.
    #[arg(long, default_value_t = 8, value_name = "N")]
    most_micro_batch: u32,
    /// Most steps between two exchanges of gradients (local updates) to list; none is chosen, because
    /// their loss was not measured.
    #[arg(long, default_value_t = 1, value_name = "N")]
    most_local_steps: u32,
    /// Largest predicted change of the final loss that a plan may have, in percent.
    #[arg(long, default_value_t = 0.1, value_name = "PERCENT")]
    tolerance: f64,
    /// Layouts to list.
    #[arg(long, default_value_t = 10, value_name = "N")]
    list: usize,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Runs `gradwire plan`.
///
/// # Errors
/// When nothing fits, the input makes no sense, or a file can't be written.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    if let Some(text) = &args.sweep.sweep {
        let (key, values) = sweep::parse(text).map_err(|error| usage("plan", error))?;
        return swept(&args, &key, &values);
    }
    let (wish, plan) = made(&args, &args.setting)?;
    if args.json {
        println!("{}", document(&wish, &plan));
    } else {
        print(&wish, &plan);
    }
    Ok(ExitCode::SUCCESS)
}

fn made(args: &Args, setting: &Setting) -> anyhow::Result<(Wish, Plan)> {
    let cluster = setting.cluster()?;
    let model = setting.model()?;
    let mut calibration = setting.calibration(&cluster)?;
    let devices = setting.devices(&cluster);
    let batch = setting.batch(&model, devices);
    let tokens = args.tokens.unwrap_or(20.0 * model.parameters());
    if !(tokens > 0.0 && tokens.is_finite()) {
        return Err(usage("plan", "--tokens must be above 0").into());
    }
    if !(args.tolerance >= 0.0 && args.tolerance.is_finite()) {
        let text = format!("--tolerance {} must be 0 or more percent", args.tolerance);
        return Err(usage("plan", text).into());
    }
    let layout = if args.layout.is_given() {
        let layout = args.layout.layout(devices, batch).map_err(|error| usage("plan", error))?;
        Some(layout)
    } else {
        None
    };
    let mut practice = setting.practice();
    args.layout.adjust(&mut practice).map_err(|error| usage("plan", error))?;
    if setting.step_seconds.is_some() {
        let Some(layout) = layout else {
            let text = "--step-seconds is of one layout; give that (--tp, --pp, --zero, ...)";
            return Err(usage("plan", text).into());
        };
        let job = Job { model: model.clone(), layout, practice: practice.clone() };
        let paced = setting.keep_pace(&job, &cluster, &mut calibration);
        paced.map_err(|error| usage("plan", error))?;
    }
    let wish = Wish {
        devices,
        batch,
        tokens,
        practice,
        layout,
        limits: Limits {
            listed: args.list.max(1),
            micro_batch: args.most_micro_batch.max(1),
            local_steps: args.most_local_steps.max(1),
        },
        convergence: Convergence { tolerance_pct: args.tolerance },
        model,
    };
    let made = plan(&wish, &cluster, &calibration, |done, all| {
        sweep::progress("plan", done, all);
    });
    Ok((wish, made.map_err(|error| usage("plan", error))?))
}

fn document(wish: &Wish, plan: &Plan) -> Value {
    json!({
        "model": wish.model.name,
        "parameters": wish.model.parameters(),
        "devices": wish.devices,
        "batch": wish.batch,
        "tokens": wish.tokens,
        "tolerance_pct": wish.convergence.tolerance_pct,
        "looked_at": plan.looked_at,
        "fitting": plan.fitting,
        "layouts": plan.layouts,
        "changes": plan.changes,
        "best": plan.best,
        "days": plan.days.0,
        "days_before": plan.days.1,
        "dollars": plan.dollars.0,
        "dollars_before": plan.dollars.1,
    })
}

fn print(wish: &Wish, plan: &Plan) {
    println!(
        "{} on {} devices, batch {}: {} layouts looked at, {} fit\n",
        wish.model.name, wish.devices, wish.batch, plan.looked_at, plan.fitting
    );
    println!("{:<40}{:>10}{:>8}{:>10}{:>10}", "layout", "step s", "MFU %", "comm. %", "memory");
    for it in &plan.layouts {
        println!(
            "{:<40}{:>10.3}{:>8.1}{:>10.1}{:>7.0} GB",
            show::layout(&it.layout),
            it.report.step_s,
            100.0 * it.report.mfu,
            100.0 * it.report.communication_share,
            it.report.memory.total() / 1e9
        );
    }
    print_changes(plan);
    let best = &plan.best;
    println!(
        "\nwith all that was chosen: {:.3} s a step, communication {:.1} %, {:.3} x the steps to the same loss",
        best.report.step_s,
        100.0 * best.report.communication_share,
        best.steps
    );
    println!("{}", show::error_band(&wish.model, &best.layout, &best.practice));
    if best.practice.compression.is_some() {
        println!("{EXTRAPOLATED}");
    }
    println!(
        "{:.3e} tokens: {:.1} days and ${:.0} instead of {:.1} days and ${:.0}",
        wish.tokens, plan.days.0, plan.dollars.0, plan.days.1, plan.dollars.1
    );
}

/// What is known of the loss of a plan that compresses.
const EXTRAPOLATED: &str = "the change of loss was measured on a small model (docs/convergence.md); that it holds \
                            here is an extrapolation";

fn print_changes(plan: &Plan) {
    println!("\nwhat each change brings to the first layout, in time to the same loss\n");
    println!("{:<48}{:>10}{:>10}{:>9}{:>8}  ", "change", "step s", "comm. %", "loss %", "gain %");
    for it in &plan.changes {
        let mark = match &it.reason {
            None => "chosen",
            Some(reason) => reason,
        };
        let loss = it.loss_pct.map_or_else(|| "?".to_owned(), |loss| format!("+{loss:.2}"));
        let gain = match it.gain_pct {
            gain if !gain.is_finite() => "never".to_owned(),
            gain if gain < -999.0 => "< -999".to_owned(),
            gain => format!("{gain:.1}"),
        };
        println!(
            "{:<48}{:>10.3}{:>10.1}{loss:>9}{gain:>8}  {mark}",
            it.name,
            it.step_s,
            100.0 * it.communication_share,
        );
    }
}

const COLUMNS: [&str; 6] =
    ["step_s_before", "communication_pct_before", "step_s", "communication_pct", "days", "dollars"];

fn swept(args: &Args, key: &str, values: &[(String, Value1)]) -> anyhow::Result<ExitCode> {
    let mut rows = Vec::new();
    for (text, value) in values {
        let mut setting = args.setting.clone();
        match *value {
            Value1::Nic(rate) => setting.nic = Some(rate),
            Value1::Ranks(ranks) => setting.ranks = Some(ranks),
            Value1::Batch(batch) => setting.batch = Some(batch),
            Value1::Straggler(_) | Value1::Failures(_) => {
                let text =
                    "plan sweeps nic, ranks or batch; simulate sweeps stragglers and failures";
                return Err(usage("plan", text).into());
            }
        }
        let (_, plan) = made(args, &setting)?;
        let first = &plan.layouts[0].report;
        let columns = vec![
            first.step_s,
            100.0 * first.communication_share,
            plan.best.report.step_s,
            100.0 * plan.best.report.communication_share,
            plan.days.0,
            plan.dollars.0,
        ];
        rows.push(Row { text: text.clone(), number: value.number(), columns });
    }
    sweep::finish(&args.sweep, key, &COLUMNS, &[1, 3], &rows, args.json)?;
    Ok(ExitCode::SUCCESS)
}
