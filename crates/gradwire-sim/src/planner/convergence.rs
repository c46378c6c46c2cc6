//! What compression costs in loss, as measured, and what a loss costs in tokens.
//!
//! The change of loss of each codec was measured by training with the engine's own codecs
//! (`docs/convergence.md`; `data/convergence_codecs.csv` says which runs): a small model for a few
//! hundred steps. That it is the same for a large model is an extrapolation, so what is held against
//! the tolerance is the upper end of the measured interval, and codecs that were not measured are not
//! offered. Local updates were not measured either.
//!
//! How many more tokens make good for a loss follows from how the loss falls with tokens: the law of
//! Hoffmann et al., "Training Compute-Optimal Large Language Models" (arXiv:2203.15556, approach 3).

use serde::Deserialize;

use crate::step::{Compression, Practice};

/// What may be lost, and on how long a training.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Convergence {
    /// Largest predicted change of the final loss that a plan may have, in percent.
    pub tolerance_pct: f64,
}

impl Default for Convergence {
    /// The margin within which `docs/convergence.md` calls losses equivalent.
    fn default() -> Self {
        Self { tolerance_pct: 0.1 }
    }
}

/// How the loss (in nats a token) falls with parameters and tokens:
/// `floor + of_parameters / N^0.34 + of_tokens / D^0.28`.
const FLOOR: f64 = 1.69;
const OF_PARAMETERS: f64 = 406.4;
const PARAMETERS_POWER: f64 = 0.34;
const OF_TOKENS: f64 = 410.7;
const TOKENS_POWER: f64 = 0.28;

/// Tokens until the loss that a model of so many `parameters` has after `tokens`, as a multiple of
/// them, if every loss is `loss_pct` percent higher. Infinite where no number of tokens suffices.
pub fn tokens_to_same_loss(parameters: f64, tokens: f64, loss_pct: f64) -> f64 {
    let from_tokens = OF_TOKENS / tokens.powf(TOKENS_POWER);
    let never = FLOOR + OF_PARAMETERS / parameters.powf(PARAMETERS_POWER);
    let loss = never + from_tokens;
    let left = loss / (1.0 + loss_pct.max(0.0) / 100.0) - never;
    if left > 0.0 { (from_tokens / left).powf(1.0 / TOKENS_POWER) } else { f64::INFINITY }
}

impl Convergence {
    /// Predicted change of the final loss in percent: the upper end of what was measured. `None` for
    /// local updates, which were not measured.
    pub fn loss_pct(&self, practice: &Practice) -> Option<f64> {
        if practice.local_steps > 1 {
            return None;
        }
        Some(practice.compression.as_ref().map_or(0.0, |it| it.loss_pct))
    }

    /// Why a plan must not have these settings.
    ///
    /// # Errors
    /// One line, if their loss is beyond the tolerance or not known.
    pub fn admit(&self, practice: &Practice) -> Result<(), String> {
        match self.loss_pct(practice) {
            None => Err("what local updates cost in loss has not been measured".to_owned()),
            Some(loss_pct) if loss_pct > self.tolerance_pct => Err(format!(
                "its measured change of loss reaches +{loss_pct} %, the tolerance is {} %",
                self.tolerance_pct
            )),
            Some(_) => Ok(()),
        }
    }
}

/// A row of the table of codecs.
#[derive(Debug, Deserialize)]
struct CodecRow {
    codec: String,
    bits: f64,
    elements_per_s: f64,
    pairs: u32,
    upper_pct: f64,
}

const CODECS: &str = include_str!("../../data/convergence_codecs.csv");

/// The compressions whose loss was measured and which make elements of `bytes` bytes smaller.
pub fn compressions(bytes: f64) -> Vec<Compression> {
    let reader = csv::ReaderBuilder::new().comment(Some(b'#')).from_reader(CODECS.as_bytes());
    let rows = reader.into_deserialize().map(|row| row.expect("a table of this project"));
    rows.filter(|row: &CodecRow| row.bits < 8.0 * bytes)
        .map(|row| Compression {
            name: row.codec,
            bits: row.bits,
            rate: bytes * row.elements_per_s,
            loss_pct: row.upper_pct,
            pairs: row.pairs,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn with(name: &str) -> Practice {
        let all = compressions(4.0);
        let compression = all.into_iter().find(|it| it.name == name);
        Practice { compression: Some(compression.expect(name)), ..Practice::default() }
    }

    #[test]
    fn only_what_was_measured_within_the_tolerance_is_admitted() {
        let strict = Convergence::default();
        assert_eq!(strict.loss_pct(&Practice::default()), Some(0.0));
        for (name, admitted) in [("int8", true), ("int4", false), ("one-bit", false)] {
            assert_eq!(strict.admit(&with(name)).is_ok(), admitted, "{name}");
        }
        let error = strict.admit(&with("one-bit")).expect_err("6.6 %");
        assert!(error.contains("6.6 %") && error.contains("0.1 %"), "{error}");
        assert!(Convergence { tolerance_pct: 0.5 }.admit(&with("int4")).is_ok());
        let local = Practice { local_steps: 8, ..Practice::default() };
        assert!(strict.admit(&local).expect_err("not known").contains("not been measured"));
    }

    proptest! {
        #[test]
        fn more_loss_costs_more_tokens(
            parameters in 1e7f64..1e12, tokens in 1e9f64..1e13, loss in 0f64..5.0, more in 0.01f64..50.0,
        ) {
            let cost = |loss| tokens_to_same_loss(parameters, tokens, loss);
            prop_assert!((cost(0.0) - 1.0).abs() < 1e-6);
            prop_assert!(cost(loss) >= 1.0 - 1e-6);
            prop_assert!(cost(loss + more) > cost(loss) || cost(loss).is_infinite());
        }
    }

    #[test]
    fn a_thousandth_of_gpt3s_loss_is_worth_three_percent_of_its_tokens() {
        let cost = tokens_to_same_loss(175e9, 300e9, 0.1);
        assert!((1.02..1.04).contains(&cost), "{cost}");
        // Below the floor there is nothing to be reached.
        assert_eq!(tokens_to_same_loss(175e9, 300e9, 23.4), f64::INFINITY);
    }

    #[test]
    fn what_is_not_smaller_is_not_offered() {
        assert!(compressions(2.0).iter().all(|it| it.bits < 16.0));
        assert!(compressions(4.0).iter().any(|it| it.name == "fp16"));
    }
}
