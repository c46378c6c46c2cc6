//! Fits the constants that are on no data sheet to a few measured points.

use gradwire_topology::AlphaBetaGamma;

use super::tables::{AllReduceRow, Measured, PointRow};
use crate::step::{Calibration, Efficiency, Fabric, simulate};

/// Fits latency and share of the links within a host to all-reduces of devices of one kind whose
/// links carry `rate` bytes per second.
pub fn within_host(rows: &[AllReduceRow], rate: f64) -> Vec<(u32, f64, f64)> {
    let mut counts: Vec<u32> = rows.iter().map(|row| row.num_gpus).collect();
    counts.sort_unstable();
    counts.dedup();
    let fit = |devices: u32| {
        let n = f64::from(devices);
        let points: Vec<(f64, f64)> = rows
            .iter()
            .filter(|row| row.num_gpus == devices)
            .map(|row| (2.0 * (n - 1.0) / n * row.size_bytes, row.time_oop_ns * 1e-9))
            .collect();
        let (alpha, beta) = AlphaBetaGamma::fit(&points)?;
        Some((devices, alpha, 1.0 / beta / rate))
    };
    counts.into_iter().filter_map(fit).collect()
}

/// The share of the NICs' rate that healthy rings between hosts reach: the median of what users
/// reported for A100 with HDR (25 GB/s each) and H100 with NDR (50 GB/s each).
pub fn network_share(points: &[PointRow]) -> Option<f64> {
    let share = |point: &PointRow| {
        let between = point.kind == "healthy" && point.nodes.starts_with('2');
        if !between {
            return None;
        }
        let (count, rate) = point.nic_per_node.split_once('x')?;
        let rate = if rate.starts_with("200") { 25.0 } else { 50.0 };
        let per_nic = point.bus.contains("per NIC");
        let number = point.bus.split(' ').next()?;
        let middle = match number.split_once('-') {
            Some((low, high)) => (low.parse::<f64>().ok()? + high.parse::<f64>().ok()?) / 2.0,
            None => number.parse().ok()?,
        };
        let nics = if per_nic { 1.0 } else { count.parse::<f64>().ok()? };
        Some(middle / (nics * rate))
    };
    let mut shares: Vec<f64> = points.iter().filter_map(share).collect();
    shares.sort_by(f64::total_cmp);
    shares.get(shares.len() / 2).copied()
}

/// The efficiencies that belong to the device, and that of the host.
const DEVICE: [usize; 5] = [0, 1, 2, 3, 4];
const HOST: [usize; 1] = [5];

/// Fits the efficiencies of a device to measured steps: the mean absolute logarithm of predicted
/// over measured (robust against rows that stand out) is made small by the method of Nelder and Mead, from the given start.
pub fn efficiency(
    steps: &[Measured],
    start: &Calibration,
    which: &[usize],
    rounds: u32,
) -> Efficiency {
    let it = &start.efficiency;
    let first = [it.product, it.attention, it.depth, it.memory, it.kernel, it.launch];
    let with = |logs: &[f64]| {
        let mut values = first;
        which.iter().zip(logs).for_each(|(at, log)| values[*at] = log.exp());
        let [product, attention, depth, memory, kernel, launch] = values;
        Efficiency {
            product: product.min(1.0),
            attention: attention.min(1.0),
            depth,
            memory: memory.min(1.0),
            launch,
            kernel,
            ..Efficiency::default()
        }
    };
    let loss = |logs: &[f64]| {
        let calibration = Calibration { efficiency: with(logs), fabric: start.fabric.clone() };
        let errors = steps.iter().filter_map(|step| {
            let report = simulate(&step.job, &step.cluster, &calibration).ok()?;
            Some((report.step_s / step.seconds).ln().abs())
        });
        errors.sum::<f64>() / steps.len().max(1) as f64 + surprise(&with(logs))
    };
    let logs: Vec<f64> = which.iter().map(|at| first[*at].ln()).collect();
    with(&nelder_mead(&logs, 0.2, rounds, loss))
}

/// What microbenchmarks say, with how sure that is (as a logarithm): cuBLAS on large matrices, on
/// batches of small ones, CUTLASS over the inner dimension (0.87 of the peak rate at 1024),
/// BabelStream, and the smallest kernels.
const EXPECTED: [(f64, f64); 5] =
    [(0.85, 0.1), (0.35, 0.3), (150.0, 0.3), (0.86, 0.1), (2.5e-6, 0.4)];
/// How much an efficiency of one standard deviation from what is expected counts, against the mean
/// error of steps.
const WEIGHT: f64 = 0.003;

/// How far efficiencies are from what microbenchmarks say. Steps of small models alone can't tell
/// slow memory from slow launches.
fn surprise(efficiency: &Efficiency) -> f64 {
    let found = [
        efficiency.product,
        efficiency.attention,
        efficiency.depth,
        efficiency.memory,
        efficiency.kernel,
    ];
    let off = found
        .iter()
        .zip(EXPECTED)
        .map(|(found, (expected, sure))| ((found / expected).ln() / sure).powi(2));
    WEIGHT * off.sum::<f64>()
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

/// Whether a device has more to do in a layer than the host needs to launch it: steps that wait for
/// launches say nothing about devices.
fn keeps_busy(step: &Measured) -> bool {
    let layout = &step.job.layout;
    let per_step = step.job.model.step_operations(f64::from(layout.micro_batch));
    let layer = per_step / f64::from(step.job.model.layers * layout.tensor);
    layer >= BUSY_OPERATIONS
}

/// Operations of a layer's passes that keep an A100 busy for about 3 ms.
const BUSY_OPERATIONS: f64 = 4.5e11;

/// Everything that is calibrated, from the calibration tables only.
pub fn calibrate(
    single: &[Measured],
    all_reduces: &[AllReduceRow],
    points: &[PointRow],
    rounds: u32,
) -> Calibration {
    let a100: Vec<AllReduceRow> =
        all_reduces.iter().filter(|row| row.gpu == "a100").cloned().collect();
    let mut fabric = Fabric { within_host: within_host(&a100, 300e9), ..Fabric::default() };
    if let Some(share) = network_share(points) {
        fabric.network = share;
    }
    // Within a single node the table holds steps whose collectives took as long as alone.
    let alone = Fabric { interference: 1.0, ..fabric.clone() };
    let start = Calibration { efficiency: Efficiency::default(), fabric: alone };
    let busy: Vec<Measured> = single.iter().filter(|step| keeps_busy(step)).cloned().collect();
    let mut calibration = start;
    // Devices from steps that keep them busy, launches from all others: each needs the other.
    for _ in 0..2 {
        calibration.efficiency = efficiency(&busy, &calibration, &DEVICE, rounds);
        calibration.efficiency = efficiency(single, &calibration, &HOST, rounds / 8);
    }
    Calibration { fabric, ..calibration }
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
