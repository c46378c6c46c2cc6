//! What goes wrong on the way: stragglers and failures.

use gradwire_sim::step::Report;
use serde::Serialize;

/// Conditions under which a job runs.
#[derive(Clone, Copy, Debug, PartialEq, clap::Args)]
pub struct Conditions {
    /// How many times as long the slowest device computes; all wait for it.
    #[arg(long, default_value_t = 1.0, value_name = "FACTOR")]
    pub straggler: f64,
    /// Failures of one device in a year.
    #[arg(long, default_value_t = 0.0, value_name = "N")]
    pub failures: f64,
    /// Seconds to write a checkpoint.
    #[arg(long, default_value_t = 60.0, value_name = "SECONDS")]
    pub checkpoint: f64,
    /// Seconds to be running again after a failure.
    #[arg(long, default_value_t = 600.0, value_name = "SECONDS")]
    pub restart: f64,
}

/// What conditions make of a step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Effect {
    /// Seconds of a step with the straggler.
    pub step_s: f64,
    /// Share of time that ends as progress, with failures.
    pub goodput: f64,
    /// Seconds between checkpoints that lose least (Young, 1974); none without failures.
    pub checkpoint_every_s: Option<f64>,
}

const YEAR: f64 = 365.25 * 86_400.0;

impl Conditions {
    /// Whether they are usable.
    pub fn check(&self) -> Result<(), String> {
        let numbers = [self.failures, self.checkpoint, self.restart];
        if !(self.straggler >= 1.0 && self.straggler.is_finite()) {
            return Err(format!("--straggler {} must be at least 1", self.straggler));
        }
        if numbers.iter().any(|it| !(*it >= 0.0 && it.is_finite())) {
            return Err("--failures, --checkpoint and --restart must not be negative".to_owned());
        }
        Ok(())
    }

    /// What becomes of a step on so many devices.
    pub fn effect(&self, report: &Report, devices: u32) -> Effect {
        let slower = (self.straggler - 1.0) * (report.compute_s + report.bubble_s);
        let step_s = report.step_s + slower;
        if self.failures <= 0.0 {
            return Effect { step_s, goodput: 1.0, checkpoint_every_s: None };
        }
        let between = YEAR / (self.failures * f64::from(devices));
        let every = (2.0 * self.checkpoint.max(1e-3) * between).sqrt();
        let lost = self.checkpoint / every + (every / 2.0 + self.restart) / between;
        let goodput = (1.0 - lost).max(0.0);
        Effect { step_s, goodput, checkpoint_every_s: Some(every) }
    }
}
