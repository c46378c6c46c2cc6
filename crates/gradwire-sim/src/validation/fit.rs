//! Finds the constants with which predicted steps take as long as measured ones.

use super::tables::Measured;
use crate::step::{Calibration, simulate};

/// A constant that measured steps can tell.
#[derive(Clone, Copy, Debug)]
pub struct Constant {
    /// Its name in a [`Calibration`].
    pub name: &'static str,
    place: fn(&mut Calibration) -> &mut f64,
    most: f64,
}

impl Constant {
    /// Its value.
    pub fn value(&self, calibration: &Calibration) -> f64 {
        *(self.place)(&mut calibration.clone())
    }

    fn set(&self, calibration: &mut Calibration, value: f64) {
        *(self.place)(calibration) = value.min(self.most);
    }
}

macro_rules! constant {
    ($part:ident.$name:ident, $most:expr) => {
        Constant { name: stringify!($name), place: |it| &mut it.$part.$name, most: $most }
    };
}

/// See [`crate::step::Efficiency::product`].
pub const PRODUCT: Constant = constant!(efficiency.product, 1.0);
/// See [`crate::step::Efficiency::attention`].
pub const ATTENTION: Constant = constant!(efficiency.attention, 1.0);
/// See [`crate::step::Efficiency::depth`].
pub const DEPTH: Constant = constant!(efficiency.depth, f64::INFINITY);
/// See [`crate::step::Efficiency::memory`].
pub const MEMORY: Constant = constant!(efficiency.memory, 1.0);
/// See [`crate::step::Efficiency::kernel`].
pub const KERNEL: Constant = constant!(efficiency.kernel, f64::INFINITY);
/// See [`crate::step::Efficiency::launch`].
pub const LAUNCH: Constant = constant!(efficiency.launch, f64::INFINITY);
/// See [`crate::step::Efficiency::pace`].
pub const PACE: Constant = constant!(efficiency.pace, f64::INFINITY);
/// See [`crate::step::Fabric::network`].
pub const NETWORK: Constant = constant!(fabric.network, 1.0);

/// Makes the mean absolute logarithm of predicted over measured steps (robust against rows that
/// stand out), plus what `surprise` says of the constants, small by the method of Nelder and Mead.
pub fn fit(
    steps: &[Measured],
    start: &Calibration,
    which: &[Constant],
    rounds: u32,
    surprise: impl Fn(&Calibration) -> f64,
) -> Calibration {
    let with = |logs: &[f64]| {
        let mut calibration = start.clone();
        which
            .iter()
            .zip(logs)
            .for_each(|(constant, log)| constant.set(&mut calibration, log.exp()));
        calibration
    };
    let loss = |logs: &[f64]| {
        let calibration = with(logs);
        let errors = steps.iter().filter_map(|step| {
            let report = simulate(&step.job, &step.cluster, &calibration).ok()?;
            Some((report.step_s / step.seconds).ln().abs())
        });
        errors.sum::<f64>() / steps.len().max(1) as f64 + surprise(&calibration)
    };
    let logs: Vec<f64> = which.iter().map(|constant| constant.value(start).ln()).collect();
    with(&nelder_mead(&logs, 0.2, rounds, loss))
}

/// What a few measured steps can change, and how sure each is before, as the standard deviation of
/// its logarithm: what a cluster's clocks, software and hosts do to all kernels alike differs most,
/// what the shape of a product costs least.
pub const FEW: [(Constant, f64); 8] = [
    (PACE, 0.5),
    (PRODUCT, 0.15),
    (ATTENTION, 0.3),
    (DEPTH, 0.3),
    (MEMORY, 0.15),
    (KERNEL, 0.4),
    (LAUNCH, 1.0),
    (NETWORK, 0.3),
];
/// How far a measured step is from any model of it, as a logarithm.
const NOISE: f64 = 0.02;
const FEW_ROUNDS: u32 = 400;

/// The constants that a few measured steps say, which stay where they were as far as those say
/// nothing: the most probable ones under [`FEW`], with errors of [`NOISE`] (Laplace).
pub fn fit_few(steps: &[Measured], start: &Calibration) -> Calibration {
    let between = steps.iter().any(|step| step.cluster.host_count() > 1);
    let which: Vec<(Constant, f64)> =
        FEW.into_iter().filter(|(constant, _)| between || constant.name != NETWORK.name).collect();
    let constants: Vec<Constant> = which.iter().map(|it| it.0).collect();
    let surprise = |calibration: &Calibration| {
        let off = |(constant, deviation): &(Constant, f64)| {
            ((constant.value(calibration) / constant.value(start)).ln() / deviation).powi(2)
        };
        NOISE / 2.0 / steps.len().max(1) as f64 * which.iter().map(off).sum::<f64>()
    };
    fit(steps, start, &constants, FEW_ROUNDS, surprise)
}

/// What [`fit_few`] made of a row: predicted seconds over measured ones.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowFit {
    /// By the constants from before.
    pub before: f64,
    /// By the fitted ones.
    pub fitted: f64,
    /// By those that were fitted to all other rows: what to expect of a step that was not measured.
    /// None for a single row.
    pub left_out: Option<f64>,
}

/// Fits a few steps, and each of them by the others. All must be possible ([`simulate`]); one that
/// is not counts for nothing.
pub fn fit_and_judge(
    steps: &[Measured],
    start: &Calibration,
    mut progress: impl FnMut(usize, usize),
) -> (Calibration, Vec<RowFit>) {
    let ratio = |step: &Measured, calibration: &Calibration| {
        let report = simulate(&step.job, &step.cluster, calibration);
        report.map_or(f64::NAN, |report| report.step_s / step.seconds)
    };
    let fits = if steps.len() > 1 { steps.len() + 1 } else { 1 };
    let fitted = fit_few(steps, start);
    progress(1, fits);
    let mut rows = Vec::with_capacity(steps.len());
    for (at, step) in steps.iter().enumerate() {
        let left_out = (steps.len() > 1).then(|| {
            let others = [&steps[..at], &steps[at + 1..]].concat();
            let ratio = ratio(step, &fit_few(&others, start));
            progress(at + 2, fits);
            ratio
        });
        rows.push(RowFit { before: ratio(step, start), fitted: ratio(step, &fitted), left_out });
    }
    (fitted, rows)
}

/// Minimises a function without its derivative (Nelder and Mead, 1965).
fn nelder_mead(start: &[f64], size: f64, rounds: u32, f: impl Fn(&[f64]) -> f64) -> Vec<f64> {
    let n = start.len();
    let mut simplex: Vec<(Vec<f64>, f64)> = Vec::with_capacity(n + 1);
    for vertex in 0..=n {
        let mut at = start.to_vec();
        if vertex > 0 {
            at[vertex - 1] += size;
        }
        let value = f(&at);
        simplex.push((at, value));
    }
    for _ in 0..rounds {
        simplex.sort_by(|a, b| a.1.total_cmp(&b.1));
        let center: Vec<f64> = (0..n)
            .map(|axis| simplex[..n].iter().map(|vertex| vertex.0[axis]).sum::<f64>() / n as f64)
            .collect();
        let worst = simplex[n].clone();
        let along = |step: f64| -> (Vec<f64>, f64) {
            let at: Vec<f64> =
                (0..n).map(|axis| center[axis] + step * (worst.0[axis] - center[axis])).collect();
            let value = f(&at);
            (at, value)
        };
        let reflected = along(-1.0);
        if reflected.1 < simplex[0].1 {
            let expanded = along(-2.0);
            simplex[n] = if expanded.1 < reflected.1 { expanded } else { reflected };
        } else if reflected.1 < simplex[n - 1].1 {
            simplex[n] = reflected;
        } else {
            let contracted = along(0.5);
            if contracted.1 < worst.1 {
                simplex[n] = contracted;
            } else {
                let best = simplex[0].0.clone();
                for vertex in &mut simplex[1..] {
                    vertex.0.iter_mut().zip(&best).for_each(|(at, to)| *at = (*at + to) / 2.0);
                    vertex.1 = f(&vertex.0);
                }
            }
        }
    }
    simplex.sort_by(|a, b| a.1.total_cmp(&b.1));
    simplex.swap_remove(0).0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_point_of_a_bowl_is_found() {
        let bowl = |at: &[f64]| (at[0] - 3.0).powi(2) + 10.0 * (at[1] + 1.0).powi(2);
        let found = nelder_mead(&[0.0, 0.0], 0.5, 200, bowl);
        assert!((found[0] - 3.0).abs() < 1e-3 && (found[1] + 1.0).abs() < 1e-3, "{found:?}");
    }
}
