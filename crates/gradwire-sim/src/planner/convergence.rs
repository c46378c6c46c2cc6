//! How many more steps compression and staleness cost until the same loss.
//!
//! For stochastic gradient methods on smooth functions, error feedback turns a compressor that keeps a
//! share `delta` of the squared norm into a delay: the bound has the uncompressed rate and a
//! higher-order term with 1/delta^2 (Karimireddy et al., "Error Feedback Fixes SignSGD", 2019; Stich
//! and Karimireddy, "The Error-Feedback Framework", 2020). Local updates add drift in proportion to the
//! number of steps between exchanges (Stich, "Local SGD Converges Fast and Communicates Little",
//! 2019; DiLoCo, arXiv:2311.08105, measures little loss up to some hundred steps with an outer
//! momentum). In the regime of training budgets these are a few percent of steps, which is what the
//! two coefficients here say; they are meant to rank settings, not to predict a loss.

use crate::step::{Compression, Practice};

/// Coefficients of the model, documented in `docs/validation.md`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Convergence {
    /// Additional steps (as a share) of a compressor with a relative squared error of 1 under error
    /// feedback.
    pub error: f64,
    /// Additional steps (as a share) of each doubling of the steps between exchanges.
    pub staleness: f64,
}

impl Default for Convergence {
    /// Rounded up from published runs: 4-bit quantization with error feedback (error about 0.01)
    /// costs well under 1 %, top 1 % sparsification (0.8 left out) some 10 %, local updates of 64
    /// steps some 3 %.
    fn default() -> Self {
        Self { error: 0.12, staleness: 0.005 }
    }
}

impl Convergence {
    /// Steps to the same loss, as a multiple of those without compression and staleness; at least 1.
    pub fn steps(&self, practice: &Practice) -> f64 {
        let error = practice.compression.as_ref().map_or(0.0, |it| it.error);
        // Errors near 1 leave nothing of the gradient: the delay grows without bound.
        let delay = error / (1.0 - error).max(0.05);
        let doublings = f64::from(practice.local_steps.max(1)).log2();
        1.0 + self.error * delay.min(20.0) * 0.25f64.max(error) + self.staleness * doublings
    }
}

/// The compressions that a plan may choose, for gradients whose elements have `bytes` bytes.
pub fn compressions(bytes: f64) -> Vec<Compression> {
    let named = |name: &str, bits: f64, rate: f64, error: f64| Compression {
        name: name.to_owned(),
        bits,
        rate,
        error,
    };
    // Rates are those of kernels bound by a device's memory, on the slow side.
    let all = [
        named("bf16", 16.0, 400e9, 1e-6),
        named("fp8", 8.25, 250e9, 8e-4),
        named("int8", 8.25, 250e9, 1e-4),
        named("int4", 4.5, 200e9, 1e-2),
        named("one-bit", 1.25, 200e9, 0.36),
        named("top-1%", 0.5, 60e9, 0.8),
    ];
    all.into_iter().filter(|it| it.bits < 8.0 * bytes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_error_and_more_staleness_cost_more_steps() {
        let model = Convergence::default();
        let mut practice = Practice::default();
        assert_eq!(model.steps(&practice), 1.0);
        let mut last = 1.0;
        let mut all = compressions(4.0);
        all.sort_by(|a, b| a.error.total_cmp(&b.error));
        for compression in all {
            practice.compression = Some(compression);
            let steps = model.steps(&practice);
            assert!(steps > last, "{steps} {last}");
            last = steps;
        }
        practice.local_steps = 64;
        assert!(model.steps(&practice) > last);
    }

    #[test]
    fn what_is_not_smaller_is_not_offered() {
        assert!(compressions(2.0).iter().all(|it| it.bits < 16.0));
        assert!(compressions(4.0).iter().any(|it| it.name == "bf16"));
    }
}
