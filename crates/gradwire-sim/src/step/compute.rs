//! Device compute: a roofline whose efficiency depends on the shape of the work.
//!
//! A matrix product is cut into tiles as cuBLAS and CUTLASS do. Tiles run in waves over the
//! multiprocessors; a last wave that is not full, tiles that stick out over the matrix, and the
//! prologue and epilogue of each tile (`depth`, in units of the inner dimension) are what keeps a
//! small product from the peak. Everything else is bound by memory. A pass can be no faster than the
//! host can launch its kernels.

use gradwire_topology::Device;
use serde::{Deserialize, Serialize};

/// What is left of the data sheet. [`crate::validation::calibrate`] fits it to measured steps.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Efficiency {
    /// Share of the peak that an endless matrix product reaches.
    pub product: f64,
    /// Share of the peak of products over many small matrices (attention).
    pub attention: f64,
    /// What a tile costs besides its products, in steps of the inner dimension.
    pub depth: f64,
    /// Share of the memory's bandwidth.
    pub memory: f64,
    /// Seconds that the host needs for each kernel.
    pub launch: f64,
    /// Seconds that the device needs to begin and end a kernel.
    pub kernel: f64,
    /// How many times as long everything takes as the above says: 1, unless a step was measured.
    #[serde(default = "as_it_says")]
    pub pace: f64,
}

fn as_it_says() -> f64 {
    1.0
}

impl Default for Efficiency {
    /// As fitted to single-node steps on A100 (`docs/validation.md`), but for launches: those steps ran
    /// under a profiler, whose 74 us are not what training sees.
    fn default() -> Self {
        Self {
            product: 0.82,
            attention: 0.335,
            depth: 162.0,
            memory: 0.825,
            launch: 20e-6,
            kernel: 2.6e-6,
            pace: as_it_says(),
        }
    }
}

/// One kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kernel {
    /// `count` products of an m x k with a k x n matrix.
    Product {
        /// Rows of the result.
        m: f64,
        /// Columns of the result.
        n: f64,
        /// Inner dimension.
        k: f64,
        /// Independent products.
        count: f64,
    },
    /// Attention in one kernel: that many operations.
    Fused {
        /// Operations.
        operations: f64,
    },
    /// Reads and writes so many bytes.
    Stream {
        /// Bytes.
        bytes: f64,
        /// Bytes of the kernels that propagate gradients back through it.
        backward: f64,
    },
}

/// Rows and columns of a tile, and its own share of the peak.
const TILES: [(f64, f64, f64); 4] =
    [(256.0, 128.0, 1.0), (128.0, 128.0, 0.92), (128.0, 64.0, 0.78), (64.0, 64.0, 0.6)];

impl Kernel {
    /// One product.
    pub fn product(m: f64, n: f64, k: f64) -> Self {
        Kernel::Product { m, n, k, count: 1.0 }
    }

    /// A pass over memory; gradients move as much.
    pub fn stream(bytes: f64) -> Self {
        Kernel::Stream { bytes, backward: bytes }
    }

    /// Operations of matrix units.
    pub fn operations(&self) -> f64 {
        match *self {
            Kernel::Product { m, n, k, count } => 2.0 * m * n * k * count,
            Kernel::Fused { operations } => operations,
            Kernel::Stream { .. } => 0.0,
        }
    }

    /// Whether it is a product of attention, or all of attention.
    pub fn is_attention(&self) -> bool {
        match self {
            Kernel::Product { count, .. } => *count > 1.0,
            Kernel::Fused { .. } => true,
            Kernel::Stream { .. } => false,
        }
    }

    /// Seconds on a device.
    pub fn seconds(&self, device: &Device, efficiency: &Efficiency) -> f64 {
        let bandwidth = device.bandwidth.0 * efficiency.memory;
        let seconds = match *self {
            Kernel::Stream { bytes, .. } => bytes / bandwidth,
            Kernel::Fused { operations } => operations / (device.peak.0 * efficiency.attention),
            Kernel::Product { m, n, k, count } => {
                let bytes = 2.0 * count * (m * n + n * k + m * k);
                product_seconds(m, n, k, count, device, efficiency).max(bytes / bandwidth)
            }
        };
        seconds + efficiency.kernel
    }
}

/// Matrix units of 16-bit numbers want dimensions in multiples of 8 (NVIDIA, "Matrix Multiplication
/// Background User's Guide"); otherwise loads are narrow and about half of the rate is lost.
fn alignment(m: f64, n: f64, k: f64) -> f64 {
    if [m, n, k].iter().all(|it| it % 8.0 == 0.0) { 1.0 } else { 0.5 }
}

/// The best tile and number of cuts along the inner dimension.
fn product_seconds(
    m: f64,
    n: f64,
    k: f64,
    count: f64,
    device: &Device,
    efficiency: &Efficiency,
) -> f64 {
    let processors = f64::from(device.multiprocessors);
    let share = if count > 1.0 { efficiency.attention } else { efficiency.product };
    let share = share * alignment(m, n, k);
    let per_processor = device.peak.0 * share / processors;
    let mut best = f64::INFINITY;
    for (rows, columns, own) in TILES {
        let tiles = (m / rows).ceil() * (n / columns).ceil() * count;
        for cuts in [1.0, 2.0, 4.0] {
            let waves = (tiles * cuts / processors).ceil();
            let steps = k / cuts + efficiency.depth;
            best = best.min(waves * 2.0 * rows * columns * steps / (per_processor * own));
        }
    }
    best
}

/// Kernels that follow each other on one device.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pass {
    /// In order.
    pub kernels: Vec<Kernel>,
}

impl Pass {
    /// Appends a kernel.
    pub fn push(&mut self, kernel: Kernel) {
        self.kernels.push(kernel);
    }

    /// Operations of matrix units.
    pub fn operations(&self) -> f64 {
        self.kernels.iter().map(Kernel::operations).sum()
    }

    /// Seconds on the device, and seconds that the host needs to launch it.
    pub fn seconds(&self, device: &Device, efficiency: &Efficiency) -> (f64, f64) {
        let busy = self.kernels.iter().map(|kernel| kernel.seconds(device, efficiency)).sum();
        (busy, self.kernels.len() as f64 * efficiency.launch)
    }

    /// The pass that propagates gradients back: each product turns into two (of inputs, of
    /// weights), everything else moves the bytes that it says.
    pub fn backward(&self) -> (Pass, Pass) {
        let (mut inputs, mut weights) = (Pass::default(), Pass::default());
        for kernel in self.kernels.iter().rev() {
            match *kernel {
                Kernel::Product { m, n, k, count } => {
                    inputs.push(Kernel::Product { m, n: k, k: n, count });
                    let second = Kernel::Product { m: k, n, k: m, count };
                    // Both operands of attention's products are activations.
                    if count > 1.0 { inputs.push(second) } else { weights.push(second) }
                }
                Kernel::Fused { operations } => {
                    // FlashAttention computes the scores again: 5 products instead of 2.
                    inputs.push(Kernel::Fused { operations: 2.5 * operations });
                }
                Kernel::Stream { backward, .. } => inputs.push(Kernel::stream(backward)),
            }
        }
        (inputs, weights)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn a100() -> Device {
        Device::named("a100-80g").expect("known")
    }

    proptest! {
        #[test]
        fn nothing_beats_the_roofline(
            m in 1u32..20_000, n in 1u32..20_000, k in 1u32..20_000, count in 1u32..64,
        ) {
            let (device, efficiency) = (a100(), Efficiency::default());
            let kernel = Kernel::Product {
                m: m.into(), n: n.into(), k: k.into(), count: count.into(),
            };
            let bound = kernel.operations() / device.peak.0;
            prop_assert!(kernel.seconds(&device, &efficiency) >= bound);
        }

        #[test]
        fn more_rows_take_no_less_time(m in 1u32..1000, more in 0u32..1000, n in 1u32..8000) {
            let (device, efficiency) = (a100(), Efficiency::default());
            let seconds = |rows: u32| {
                Kernel::product(rows.into(), n.into(), 4096.0).seconds(&device, &efficiency)
            };
            prop_assert!(seconds(8 * (m + more)) >= seconds(8 * m));
        }
    }

    #[test]
    fn large_products_come_near_the_fitted_share() {
        let (device, efficiency) = (a100(), Efficiency::default());
        let kernel = Kernel::product(8192.0, 12288.0, 12288.0);
        let share = kernel.operations() / kernel.seconds(&device, &efficiency) / device.peak.0;
        assert!(share > 0.9 * efficiency.product && share <= efficiency.product, "{share}");
    }

    #[test]
    fn backward_has_twice_the_operations() {
        let pass = Pass {
            kernels: vec![
                Kernel::product(100.0, 200.0, 300.0),
                Kernel::Product { m: 10.0, n: 20.0, k: 30.0, count: 4.0 },
            ],
        };
        let (inputs, weights) = pass.backward();
        assert_eq!(inputs.operations() + weights.operations(), 2.0 * pass.operations());
    }
}
