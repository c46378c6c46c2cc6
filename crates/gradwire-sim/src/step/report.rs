//! What comes out of a simulated step.

use serde::Serialize;

use super::memory::Memory;
use super::pipeline::Span;

/// What one kind of group communicates in a step, on the device that is through last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Communication {
    /// Seconds that its collectives take.
    pub total_s: f64,
    /// Seconds of them that computation does not hide.
    pub exposed_s: f64,
    /// Bytes that each device sends.
    pub bytes: f64,
}

/// See the module's documentation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Seconds of a step.
    pub step_s: f64,
    /// Seconds of computation on the busiest stage, what is computed again included.
    pub compute_s: f64,
    /// Seconds that the busiest stage waits for others.
    pub bubble_s: f64,
    /// Seconds of the optimizer.
    pub optimizer_s: f64,
    /// Seconds by which overlapped collectives slow computation down.
    pub slowdown_s: f64,
    /// Within tensor groups.
    pub tensor: Communication,
    /// Between stages.
    pub pipeline: Communication,
    /// Between copies.
    pub data: Communication,
    /// Between devices that share experts.
    pub expert: Communication,
    /// Between devices that share sequences.
    pub context: Communication,
    /// Share of the step that waits for communication.
    pub communication_share: f64,
    /// Share of the devices' peak that the model's own operations make up.
    pub mfu: f64,
    /// The same with what is computed again.
    pub hfu: f64,
    /// Operations per second and device, the model's own.
    pub flops_per_device: f64,
    /// Tokens per second, of all devices.
    pub tokens_per_second: f64,
    /// Bytes that the busiest NIC sends in a step.
    pub nic_bytes: f64,
    /// Bytes that the busiest direct link between devices of a host carries in a step.
    pub link_bytes: f64,
    /// What the fullest device holds.
    pub memory: Memory,
    /// Whether that fits.
    pub fits: bool,
    /// Passes of the pipeline, for a timeline; empty unless asked for.
    #[serde(skip)]
    pub spans: Vec<Span>,
}

impl Report {
    /// Seconds of communication that computation does not hide.
    pub fn exposed_s(&self) -> f64 {
        self.groups().iter().map(|(_, it)| it.exposed_s).sum()
    }

    /// Every kind of group, with its name.
    pub fn groups(&self) -> [(&'static str, Communication); 5] {
        [
            ("tensor", self.tensor),
            ("pipeline", self.pipeline),
            ("data", self.data),
            ("expert", self.expert),
            ("context", self.context),
        ]
    }
}
