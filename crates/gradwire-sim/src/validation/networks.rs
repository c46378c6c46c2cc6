//! GPT-3 175B on 1,024 devices over networks: where communication hurts and what helps.

use std::fmt::Write;

use serde::Serialize;

use super::tables::{selene, with_rate};
use crate::planner::{Candidate, Convergence, Limits, Wish, plan};
use crate::plot::{Axes, Series, plot as draw};
use crate::step::{Calibration, Efficiency, Layout, Practice, Recompute, Transformer};

/// What communication costs on a network, and what gradwire's settings bring it to.
#[derive(Clone, Debug, Serialize)]
pub struct NetworkRow {
    /// Gbit/s of each of the eight NICs of a host.
    pub gigabits: f64,
    /// Seconds of a step and share of communication in percent, with a common layout over NCCL.
    pub before: (f64, f64),
    /// The same layout with the settings of communication that a plan chooses.
    pub settings: (f64, f64),
    /// The layout and settings that a plan chooses.
    pub plan: (f64, f64),
    /// That layout.
    pub layout: String,
}

/// Rates of NICs in Gbit/s.
const RATES: [f64; 8] = [1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 200.0];

/// 128 DGX A100 whose eight NICs have 1 to 200 Gbit/s.
///
/// # Errors
/// When no layout fits.
pub fn networks(calibration: &Calibration) -> Result<Vec<NetworkRow>, String> {
    // Launches as training sees them, not as the profiler of the calibration rows did.
    let efficiency = Efficiency { launch: Efficiency::default().launch, ..calibration.efficiency };
    let calibration = Calibration { efficiency, ..calibration.clone() };
    RATES.into_iter().map(|gigabits| row(gigabits, &calibration)).collect()
}

fn row(gigabits: f64, calibration: &Calibration) -> Result<NetworkRow, String> {
    let common = Layout {
        tensor: 8,
        pipeline: 8,
        data: 16,
        interleave: 4,
        batch: 1536,
        zero: 1,
        sequence_parallel: true,
        recompute: Recompute::Selective,
        ..Layout::default()
    };
    let cluster = with_rate(&selene(1024), gigabits);
    let made = |layout| {
        let wish = Wish {
            model: Transformer::named("gpt3-175b").expect("a known model"),
            devices: 1024,
            batch: 1536,
            tokens: 300e9,
            practice: Practice::default(),
            layout,
            limits: Limits::default(),
            convergence: Convergence::default(),
        };
        plan(&wish, &cluster, calibration, |_, _| {})
    };
    let (fixed, free) = (made(Some(common))?, made(None)?);
    let of = |it: &Candidate| (it.report.step_s, 100.0 * it.report.communication_share);
    Ok(NetworkRow {
        gigabits,
        before: of(&fixed.layouts[0]),
        settings: of(&fixed.best),
        plan: of(&free.best),
        layout: free.best.layout.name(),
    })
}

/// The section of the page, in Markdown.
pub fn section(rows: &[NetworkRow]) -> String {
    let mut page = String::from(
        "\n## Where communication passes 40 %\n\nGPT-3 175B on 1,024 A100 (128 hosts, eight NICs \
         each, batch 1536), predicted: seconds of a step and the share of it that waits for \
         communication. The common layout is tp8 pp8 dp16 with four chunks a stage; settings are \
         those of communication that `gradwire plan` chooses for it; the plan chooses the layout \
         too.\n\n![networks](validation/networks.svg)\n\n\
         | Gbit/s a NIC | common layout | with settings | plan | its layout |\n|---|---|---|---|---|\n",
    );
    let show = |(seconds, share): (f64, f64)| format!("{seconds:.1} s, {share:.0} %");
    for row in rows {
        let _ = writeln!(
            page,
            "| {} | {} | {} | {} | {} |",
            row.gigabits,
            show(row.before),
            show(row.settings),
            show(row.plan),
            row.layout
        );
    }
    page
}

/// The plot beside it.
pub fn plot(rows: &[NetworkRow]) -> String {
    let axes = Axes {
        title: "GPT-3 175B on 1,024 devices",
        x: "Gbit/s of each of eight NICs",
        y: "communication, % of a step",
        logarithmic: true,
        lines: true,
        diagonal: false,
    };
    let of = |name: &str, value: fn(&NetworkRow) -> f64| Series {
        name: name.to_owned(),
        points: rows.iter().map(|row| (row.gigabits, value(row))).collect(),
    };
    let series = [
        of("common layout", |row| row.before.1),
        of("with gradwire's settings", |row| row.settings.1),
        of("plan", |row| row.plan.1),
    ];
    draw(&axes, &series)
}
