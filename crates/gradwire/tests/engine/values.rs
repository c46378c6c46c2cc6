//! Numbers that every data type holds exactly, so that a sum has one right result.

use gradwire::{DataType, ReduceOp};

/// What a rank contributes to an element. Small enough that no sum or product is rounded, even
/// with three bits.
pub fn contribution(dtype: DataType, rank: usize, index: usize) -> f64 {
    let values = match dtype {
        DataType::Bool | DataType::F8E4M3 | DataType::F8E5M2 => 2,
        _ => 4,
    };
    ((index * 3 + rank * 5 + index / 7) % values) as f64
}

/// The reduction of all ranks' contributions.
pub fn reduce(dtype: DataType, op: ReduceOp, contributions: impl Iterator<Item = f64>) -> f64 {
    let all: Vec<f64> = contributions.collect();
    let bits = |combine: fn(u64, u64) -> u64| {
        all.iter().map(|value| *value as u64).reduce(combine).unwrap() as f64
    };
    let total = match op {
        ReduceOp::Sum => all.iter().sum(),
        ReduceOp::Average => all.iter().sum::<f64>() / all.len() as f64,
        ReduceOp::Min => all.iter().copied().fold(f64::INFINITY, f64::min),
        ReduceOp::Max => all.iter().copied().fold(0.0, f64::max),
        ReduceOp::Product => all.iter().product(),
        ReduceOp::BitAnd => bits(|a, b| a & b),
        ReduceOp::BitOr => bits(|a, b| a | b),
        ReduceOp::BitXor => bits(|a, b| a ^ b),
    };
    if dtype == DataType::Bool { f64::from(u8::from(total != 0.0)) } else { total }
}

/// The elements as they lie in memory.
pub fn encode(dtype: DataType, values: impl Iterator<Item = f64>) -> Vec<u8> {
    values
        .flat_map(|value| {
            let integer = value as i64;
            match dtype {
                DataType::F32 => (value as f32).to_le_bytes().to_vec(),
                DataType::F64 => value.to_le_bytes().to_vec(),
                DataType::F16 => float(value, 10, 15).to_le_bytes().to_vec(),
                DataType::Bf16 => float(value, 7, 127).to_le_bytes().to_vec(),
                DataType::F8E4M3 => vec![float(value, 3, 7) as u8],
                DataType::F8E5M2 => vec![float(value, 2, 15) as u8],
                DataType::I8 | DataType::U8 | DataType::Bool => vec![integer as u8],
                DataType::I16 => (integer as i16).to_le_bytes().to_vec(),
                DataType::I32 => (integer as i32).to_le_bytes().to_vec(),
                DataType::I64 => integer.to_le_bytes().to_vec(),
            }
        })
        .collect()
}

/// A whole number, 0 or greater, as a float with so many bits of mantissa and that bias.
fn float(value: f64, mantissa_bits: u32, bias: i32) -> u16 {
    if value == 0.0 {
        return 0;
    }
    let exponent = value.log2().floor() as i32;
    let mantissa = (value / f64::from(exponent).exp2() - 1.0) * f64::from(1 << mantissa_bits);
    assert_eq!(mantissa.fract(), 0.0, "{value} is not held exactly");
    (((exponent + bias) as u16) << mantissa_bits) | mantissa as u16
}
