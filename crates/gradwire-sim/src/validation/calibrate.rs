//! Fits the constants that are on no data sheet to a few measured points.

use gradwire_topology::AlphaBetaGamma;

use super::fit::{ATTENTION, Constant, DEPTH, KERNEL, LAUNCH, MEMORY, PRODUCT, fit};
use super::tables::{AllReduceRow, Measured, PointRow};
use crate::step::{Calibration, Efficiency, Fabric};

/// Fits latency and share of the links within a host to all-reduces of devices of one kind whose
/// links carry `rate` bytes per second.
pub fn within_host(rows: &[AllReduceRow], rate: f64) -> Vec<(u32, f64, f64)> {
    let mut counts: Vec<u32> = rows.iter().map(|row| row.num_gpus).collect();
    counts.sort_unstable();
    counts.dedup();
    let line = |devices: u32| {
        let n = f64::from(devices);
        let points: Vec<(f64, f64)> = rows
            .iter()
            .filter(|row| row.num_gpus == devices)
            .map(|row| (2.0 * (n - 1.0) / n * row.size_bytes, row.time_oop_ns * 1e-9))
            .collect();
        let (alpha, beta) = AlphaBetaGamma::fit(&points)?;
        Some((devices, alpha, 1.0 / beta / rate))
    };
    counts.into_iter().filter_map(line).collect()
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

/// The constants of a device; those of its host are launches.
const DEVICE: [Constant; 5] = [PRODUCT, ATTENTION, DEPTH, MEMORY, KERNEL];

/// What microbenchmarks say, with how sure that is (as a logarithm): cuBLAS on large matrices, on
/// batches of small ones, CUTLASS over the inner dimension (0.87 of the peak rate at 1024),
/// BabelStream, and the smallest kernels.
const EXPECTED: [(f64, f64); 5] =
    [(0.85, 0.1), (0.35, 0.3), (150.0, 0.3), (0.86, 0.1), (2.5e-6, 0.4)];
/// How much an efficiency of one standard deviation from what is expected counts, against the mean
/// error of steps.
const WEIGHT: f64 = 0.003;

/// How far a device's constants are from what microbenchmarks say. Steps of small models alone can't
/// tell slow memory from slow launches.
fn surprise(calibration: &Calibration) -> f64 {
    let off = DEVICE.iter().zip(EXPECTED).map(|(constant, (expected, sure))| {
        ((constant.value(calibration) / expected).ln() / sure).powi(2)
    });
    WEIGHT * off.sum::<f64>()
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
        calibration = fit(&busy, &calibration, &DEVICE, rounds, surprise);
        calibration = fit(single, &calibration, &[LAUNCH], rounds / 8, surprise);
    }
    Calibration { fabric, ..calibration }
}
