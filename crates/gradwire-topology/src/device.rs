//! What a device can do, from its data sheet.

use crate::units::{Bytes, Flops, Rate};

/// A kind of accelerator (or CPU) as its maker describes it.
///
/// How much of it a training step reaches is no property of the device but of the work; see the
/// efficiencies in `gradwire-sim`.
#[derive(Clone, Debug, PartialEq)]
pub struct Device {
    /// Name as it is written in cluster files.
    pub name: String,
    /// Dense 16-bit matrix multiplication, operations per second.
    pub peak: Flops,
    /// Memory.
    pub memory: Bytes,
    /// Bandwidth of the memory.
    pub bandwidth: Rate,
    /// Streaming multiprocessors: how many tiles of a matrix product run at once.
    pub multiprocessors: u32,
    /// Typical rent in US dollars per hour, for cost estimates.
    pub dollars_per_hour: f64,
}

/// name, peak in TFLOP/s, memory in GB, bandwidth in GB/s, multiprocessors, dollars per hour.
type Row = (&'static str, f64, f64, f64, u32, f64);

/// Data sheets of the makers; prices are round figures of 2025.
const KNOWN: &[Row] = &[
    ("v100", 125.0, 32.0, 900.0, 80, 0.8),
    ("a100-40g", 312.0, 40.0, 1555.0, 108, 1.3),
    ("a100-80g", 312.0, 80.0, 2039.0, 108, 1.6),
    ("a800", 312.0, 80.0, 2039.0, 108, 1.4),
    ("h100", 989.0, 80.0, 3350.0, 132, 2.5),
    ("h100-pcie", 756.0, 80.0, 2000.0, 114, 2.2),
    ("h800", 989.0, 80.0, 3350.0, 132, 2.0),
    ("h200", 989.0, 141.0, 4800.0, 132, 3.2),
    ("b200", 2250.0, 180.0, 8000.0, 148, 5.0),
    ("l40s", 362.0, 48.0, 864.0, 142, 0.9),
    ("rtx3090", 71.0, 24.0, 936.0, 82, 0.25),
    ("rtx4090", 165.0, 24.0, 1008.0, 128, 0.4),
    ("mi300x", 1307.0, 192.0, 5300.0, 304, 2.5),
    ("cpu", 0.1, 8.0, 20.0, 1, 0.05),
];

impl Device {
    /// The device of that name, in any case.
    pub fn named(name: &str) -> Option<Self> {
        let name = if name.eq_ignore_ascii_case("a100") { "a100-80g" } else { name };
        let row = KNOWN.iter().find(|row| row.0.eq_ignore_ascii_case(name))?;
        let &(name, peak, memory, bandwidth, multiprocessors, dollars_per_hour) = row;
        Some(Self {
            name: name.to_owned(),
            peak: Flops(peak * 1e12),
            memory: Bytes(memory * 1e9),
            bandwidth: Rate(bandwidth * 1e9),
            multiprocessors,
            dollars_per_hour,
        })
    }

    /// The names that [`Device::named`] knows.
    pub fn names() -> impl Iterator<Item = &'static str> {
        KNOWN.iter().map(|row| row.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_known() {
        for name in Device::names() {
            assert_eq!(Device::named(&name.to_uppercase()).map(|it| it.name), Some(name.into()));
        }
        assert_eq!(Device::named("abacus"), None);
    }
}
