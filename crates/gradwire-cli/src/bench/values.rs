//! Values whose reduction is exact in every data type, so that a check can ask for the very bits.

use gradwire::{DataType, ReduceOp};
use half::{bf16, f16};

use super::shape::Segment;

/// Values repeat after this many elements: a prime, so that data which ends up in a wrong place is
/// seen wherever chunks and tiles begin.
const PERIOD: usize = 1009;

/// One period of what each rank contributes and of the reduction, as bytes.
#[derive(Debug)]
pub struct Values {
    element: usize,
    contributions: Vec<Vec<u8>>,
    reduction: Vec<u8>,
    /// A mean may be rounded once: its last bit is not asked for.
    is_rounded: bool,
}

impl Values {
    /// Values for an operator, or for moving only.
    pub fn new(dtype: DataType, op: Option<ReduceOp>, ranks: usize) -> Self {
        let period = |value: &dyn Fn(usize) -> f64| -> Vec<u8> {
            (0..PERIOD).flat_map(|index| encode(dtype, value(index))).collect()
        };
        let of = |rank: usize, index: usize| contribution(dtype, op, ranks, rank, index);
        Values {
            element: dtype.size_bytes(),
            contributions: (0..ranks).map(|rank| period(&|index| of(rank, index) as f64)).collect(),
            reduction: op.map_or_else(Vec::new, |op| {
                period(&|index| reduce(dtype, op, (0..ranks).map(|rank| of(rank, index))))
            }),
            is_rounded: op == Some(ReduceOp::Average) && dtype.is_float(),
        }
    }

    /// Writes segments one after the other.
    pub fn fill(&self, mut buffer: &mut [u8], segments: &[Segment]) {
        for segment in segments {
            let (here, rest) = buffer.split_at_mut(segment.elements * self.element);
            buffer = rest;
            let table = self.table(*segment);
            let (mut at, mut here) = (segment.start % PERIOD * self.element, here);
            while !here.is_empty() {
                let length = here.len().min(table.len() - at);
                let (now, later) = here.split_at_mut(length);
                now.copy_from_slice(&table[at..at + length]);
                (at, here) = (0, later);
            }
        }
    }

    /// Counts the elements that are not what the segments say.
    pub fn count_wrong(&self, mut buffer: &[u8], segments: &[Segment]) -> u64 {
        let mut wrong = 0;
        for segment in segments {
            let (mut here, rest) = buffer.split_at(segment.elements * self.element);
            buffer = rest;
            let table = self.table(*segment);
            let mut at = segment.start % PERIOD * self.element;
            while !here.is_empty() {
                let length = here.len().min(table.len() - at);
                wrong += self.count_differences(&here[..length], &table[at..at + length]);
                (at, here) = (0, &here[length..]);
            }
        }
        wrong
    }

    fn table(&self, segment: Segment) -> &[u8] {
        segment.from.map_or(&self.reduction, |rank| &self.contributions[rank])
    }

    fn count_differences(&self, found: &[u8], expected: &[u8]) -> u64 {
        if found == expected {
            return 0;
        }
        let tolerance = u64::from(self.is_rounded);
        let pairs = found.chunks_exact(self.element).zip(expected.chunks_exact(self.element));
        // Bits of positive floats are in the order of their values, neighbours differ by one.
        pairs.filter(|(a, b)| bits(a).abs_diff(bits(b)) > tolerance).count() as u64
    }
}

fn bits(element: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..element.len()].copy_from_slice(element);
    u64::from_le_bytes(word)
}

/// Up to here a type holds all integers.
fn largest_exact_integer(dtype: DataType) -> usize {
    match dtype {
        DataType::Bool => 1,
        DataType::F8E5M2 => 8,
        DataType::F8E4M3 => 16,
        DataType::I8 => 127,
        DataType::U8 => 255,
        DataType::Bf16 => 256,
        DataType::F16 => 2048,
        _ => 1 << 24,
    }
}

/// What a rank contributes to an element: a small integer, chosen so that the result over all ranks
/// (and every partial result) is an integer that the type holds.
fn contribution(
    dtype: DataType,
    op: Option<ReduceOp>,
    ranks: usize,
    rank: usize,
    index: usize,
) -> usize {
    let mixed = index * 7 + rank * 13;
    let turn = (index + rank) % (ranks + 1);
    let limit = largest_exact_integer(dtype);
    match op {
        Some(ReduceOp::Sum | ReduceOp::Max | ReduceOp::BitOr) if dtype == DataType::Bool => {
            usize::from(turn == 0)
        }
        Some(ReduceOp::Product | ReduceOp::Min | ReduceOp::BitAnd) if dtype == DataType::Bool => {
            usize::from(turn != 0)
        }
        Some(ReduceOp::Sum | ReduceOp::Average) if limit >= ranks => {
            mixed % ((limit / ranks).min(100) + 1)
        }
        Some(ReduceOp::Sum | ReduceOp::Average) => {
            usize::from((index + rank).is_multiple_of(ranks.div_ceil(limit)))
        }
        // At most three twos: 8 is exact in every type.
        Some(ReduceOp::Product) => {
            if turn < index % 4 {
                2
            } else {
                1
            }
        }
        Some(ReduceOp::BitAnd) => (mixed % 128) | (index % 128),
        _ => mixed % (limit.min(100) + 1),
    }
}

fn reduce(dtype: DataType, op: ReduceOp, values: impl Iterator<Item = usize> + Clone) -> f64 {
    let is_bool = dtype == DataType::Bool;
    let sum = || values.clone().sum::<usize>();
    let result = match op {
        ReduceOp::Average => {
            let mean = sum() as f64 / values.clone().count() as f64;
            return if dtype.is_float() { mean } else { mean.trunc() };
        }
        ReduceOp::Sum if is_bool => sum().min(1),
        ReduceOp::Sum => sum(),
        ReduceOp::Product => values.product(),
        ReduceOp::Min => values.min().unwrap_or(0),
        ReduceOp::Max => values.max().unwrap_or(0),
        ReduceOp::BitAnd => values.fold(usize::MAX, |all, value| all & value),
        ReduceOp::BitOr => values.fold(0, |all, value| all | value),
        ReduceOp::BitXor => values.fold(0, |all, value| all ^ value),
    };
    result as f64
}

fn encode(dtype: DataType, value: f64) -> Vec<u8> {
    match dtype {
        DataType::F32 => (value as f32).to_ne_bytes().to_vec(),
        DataType::F64 => value.to_ne_bytes().to_vec(),
        DataType::F16 => f16::from_f64(value).to_ne_bytes().to_vec(),
        DataType::Bf16 => bf16::from_f64(value).to_ne_bytes().to_vec(),
        DataType::I8 => (value as i8).to_ne_bytes().to_vec(),
        DataType::U8 | DataType::Bool => vec![value as u8],
        DataType::I16 => (value as i16).to_ne_bytes().to_vec(),
        DataType::I32 => (value as i32).to_ne_bytes().to_vec(),
        DataType::I64 => (value as i64).to_ne_bytes().to_vec(),
        DataType::F8E4M3 => vec![nearest_eight_bit_float(value, 3, 7)],
        DataType::F8E5M2 => vec![nearest_eight_bit_float(value, 2, 15)],
    }
}

/// The code of the 8-bit float nearest to a small positive number.
fn nearest_eight_bit_float(value: f64, mantissa_bits: u32, bias: i32) -> u8 {
    let decode = |code: u8| {
        let mantissa = f64::from(code & ((1 << mantissa_bits) - 1)) / f64::from(1 << mantissa_bits);
        match i32::from(code >> mantissa_bits) {
            0 => mantissa * f64::powi(2.0, 1 - bias),
            exponent => (1.0 + mantissa) * f64::powi(2.0, exponent - bias),
        }
    };
    let distance = |code: &u8| (decode(*code) - value).abs();
    (0..0x70).min_by(|a, b| distance(a).total_cmp(&distance(b))).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partial_results_are_exact_in_every_type() {
        for dtype in DataType::ALL {
            for ranks in [1, 2, 3, 8, 33, 300] {
                for op in [ReduceOp::Sum, ReduceOp::Product] {
                    let limit = largest_exact_integer(dtype) as f64;
                    for index in 0..PERIOD {
                        let values = (0..ranks)
                            .map(|rank| contribution(dtype, Some(op), ranks, rank, index));
                        let result = reduce(dtype, op, values);
                        assert!(result <= limit, "{dtype} {op} {ranks} ranks: {result}");
                    }
                }
            }
        }
    }

    #[test]
    fn every_changed_element_is_counted() {
        let values = Values::new(DataType::F32, Some(ReduceOp::Sum), 4);
        let segments = [
            Segment { from: None, start: 5000, elements: 3000 },
            Segment { from: Some(2), start: 0, elements: 10 },
        ];
        let mut buffer = vec![0; 3010 * 4];
        values.fill(&mut buffer, &segments);
        assert_eq!(values.count_wrong(&buffer, &segments), 0);
        for element in [0, 2000, 3009] {
            buffer[element * 4 + 3] ^= 0x40;
        }
        assert_eq!(values.count_wrong(&buffer, &segments), 3);
        let moved = [Segment { start: 5001, ..segments[0] }];
        assert!(values.count_wrong(&buffer, &moved) > 2000);
    }

    #[test]
    fn eight_bit_floats_are_encoded_as_pytorch_does() {
        assert_eq!(encode(DataType::F8E4M3, 1.0), [0x38]);
        assert_eq!(encode(DataType::F8E4M3, 13.0), [0x55]);
        assert_eq!(encode(DataType::F8E5M2, 1.0), [0x3c]);
        assert_eq!(encode(DataType::F8E5M2, 7.0), [0x47]);
        assert_eq!(encode(DataType::F8E5M2, 0.0), [0]);
    }
}
