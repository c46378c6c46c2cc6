//! Reports as text and JSON.

use gradwire_sim::step::{Carrier, Job, Layout, Practice, Report, Transformer};
use serde_json::{Value, json};

use super::conditions::Effect;

/// A report with what it is about.
pub struct Shown<'a> {
    /// The job.
    pub job: &'a Job,
    /// Name of the cluster.
    pub cluster: &'a str,
    /// The step.
    pub report: &'a Report,
    /// What stragglers and failures make of it.
    pub effect: Effect,
    /// Seconds of a step if every device did half of its peak.
    pub null_s: f64,
}

/// What there are no measurements of to hold the prediction against, if so.
fn unseen(model: &Transformer, layout: &Layout, practice: &Practice) -> Option<&'static str> {
    if model.experts.is_some() {
        Some("mixtures of experts")
    } else if layout.context > 1 {
        Some("context parallelism")
    } else if practice.carrier == Carrier::Gradwire {
        Some("gradwire between hosts, outside of the lab")
    } else {
        None
    }
}

/// How far off a step's time may be, and where that is known from.
pub fn error_band(model: &Transformer, layout: &Layout, practice: &Practice) -> String {
    match unseen(model, layout, practice) {
        None => format!("error band +-{ERROR_BAND_PCT:.0} % (docs/validation.md)"),
        Some(what) => format!("error band unknown: there are no measurements of {what}"),
    }
}

impl Shown<'_> {
    /// One JSON object.
    pub fn json(&self) -> Value {
        let seen = unseen(&self.job.model, &self.job.layout, &self.job.practice).is_none();
        json!({
            "model": self.job.model.name,
            "parameters": self.job.model.parameters(),
            "cluster": self.cluster,
            "layout": self.job.layout,
            "layout_name": self.job.layout.name(),
            "practice": self.job.practice,
            "report": self.report,
            "conditions": self.effect,
            "null_step_s": self.null_s,
            "error_band_pct": seen.then_some(ERROR_BAND_PCT),
        })
    }

    /// A table for people.
    pub fn print(&self) {
        let Report { step_s, .. } = *self.report;
        let layout = &self.job.layout;
        println!(
            "{} ({:.1}B parameters) on {}\n{}, {} devices, batch {} in microbatches of {}\n",
            self.job.model.name,
            self.job.model.parameters() / 1e9,
            self.cluster,
            layout.name(),
            layout.devices(),
            layout.batch,
            layout.micro_batch
        );
        println!("{:<34}{:>12}{:>9}", "", "seconds", "%");
        let line = |name: &str, seconds: f64| {
            println!("{name:<34}{seconds:>12.4}{:>9.1}", 100.0 * seconds / step_s);
        };
        line("computation", self.report.compute_s);
        line("pipeline bubble", self.report.bubble_s);
        for (name, group) in self.report.groups().into_iter().filter(|(_, it)| it.total_s > 0.0) {
            line(&format!("{name} communication, exposed"), group.exposed_s);
        }
        line("slowed by overlapped collectives", self.report.slowdown_s);
        line("optimizer", self.report.optimizer_s);
        line("step", step_s);
        self.print_rest();
    }

    fn print_rest(&self) {
        let report = self.report;
        println!(
            "\n{}; null model (every device at half its peak) {:.4} s",
            error_band(&self.job.model, &self.job.layout, &self.job.practice),
            self.null_s
        );
        println!(
            "\n{:<14}{:>12}{:>12}{:>16}",
            "communication", "total s", "exposed s", "GB a device"
        );
        for (name, group) in report.groups().into_iter().filter(|(_, it)| it.total_s > 0.0) {
            println!(
                "{name:<14}{:>12.4}{:>12.4}{:>16.2}",
                group.total_s,
                group.exposed_s,
                group.bytes / 1e9
            );
        }
        println!(
            "\ncommunication share {:.1} %, MFU {:.1} %, {:.0} TFLOP/s a device, {:.0} tokens/s",
            100.0 * report.communication_share,
            100.0 * report.mfu,
            report.flops_per_device / 1e12,
            report.tokens_per_second
        );
        println!(
            "busiest NIC sends {:.2} GB a step, busiest direct link {:.2} GB",
            report.nic_bytes / 1e9,
            report.link_bytes / 1e9
        );
        let memory = report.memory;
        println!(
            "memory {:.1} GB a device{}: parameters {:.1}, gradients {:.1}, optimizer {:.1}, activations {:.1}",
            memory.total() / 1e9,
            if report.fits { "" } else { " (DOES NOT FIT)" },
            memory.parameters / 1e9,
            memory.gradients / 1e9,
            memory.optimizer / 1e9,
            memory.activations / 1e9
        );
        if let Some(every) = self.effect.checkpoint_every_s {
            println!(
                "with failures: {:.1} % of time is progress, checkpoint every {every:.0} s",
                100.0 * self.effect.goodput
            );
        }
        if self.effect.step_s > report.step_s {
            println!("with the straggler: {:.4} s a step", self.effect.step_s);
        }
    }
}

/// The mean error that validation finds on steps over several nodes, rounded up.
const ERROR_BAND_PCT: f64 = 8.0;

/// A layout in a table.
pub fn layout(layout: &Layout) -> String {
    format!("{} mb{} {:?}", layout.name(), layout.micro_batch, layout.recompute).to_lowercase()
}
