//! What the kernels must compute, written without regard to speed: one element at a time, in
//! double precision or 128-bit integers, and rounded by searching a table of all values.

use gradwire_reduce::{DataType, ReduceOp};
use half::{bf16, f16};

/// What one element is.
#[derive(Clone, Copy, Debug)]
enum Value {
    Float(f64),
    Integer(i128),
    Bool(bool),
}

/// `a ⊕ b` for one element; the average is finished when `finish` is given.
pub fn combine(dtype: DataType, op: ReduceOp, a: &[u8], b: &[u8], finish: Option<u32>) -> Vec<u8> {
    let value = match (read(dtype, a), read(dtype, b)) {
        (Value::Float(a), Value::Float(b)) => Value::Float(float(dtype, op, a, b, finish)),
        (Value::Integer(a), Value::Integer(b)) => Value::Integer(integer(dtype, op, a, b, finish)),
        (Value::Bool(a), Value::Bool(b)) => Value::Bool(match op {
            ReduceOp::Sum | ReduceOp::Max | ReduceOp::BitOr => a || b,
            ReduceOp::Product | ReduceOp::Min | ReduceOp::BitAnd => a && b,
            ReduceOp::BitXor => a != b,
            ReduceOp::Average => unreachable!("bool has no average"),
        }),
        _ => unreachable!("both elements have one type"),
    };
    write(dtype, value)
}

/// One element divided by the number of ranks.
pub fn divide(dtype: DataType, element: &[u8], ranks: u32) -> Vec<u8> {
    let value = match read(dtype, element) {
        Value::Float(number) => Value::Float(step(dtype, number / f64::from(ranks), ranks)),
        Value::Integer(number) => Value::Integer(number / i128::from(ranks)),
        Value::Bool(_) => unreachable!("bool has no average"),
    };
    write(dtype, value)
}

fn float(dtype: DataType, op: ReduceOp, a: f64, b: f64, finish: Option<u32>) -> f64 {
    match (op, finish) {
        (ReduceOp::Sum | ReduceOp::Average, None) | (ReduceOp::Sum, _) => step(dtype, a + b, 1),
        (ReduceOp::Average, Some(ranks)) => {
            step(dtype, step(dtype, a + b, 1) / f64::from(ranks), ranks)
        }
        (ReduceOp::Product, _) => step(dtype, a * b, 1),
        (ReduceOp::Min, _) => extreme(a, b, a.total_cmp(&b).is_lt()),
        (ReduceOp::Max, _) => extreme(a, b, a.total_cmp(&b).is_gt()),
        _ => unreachable!("floats have no bitwise operators"),
    }
}

/// Rounds a result to the precision that the type is computed in. Rounding the double first is
/// harmless: it has more than twice the digits of a single.
fn step(dtype: DataType, exact: f64, ranks: u32) -> f64 {
    assert!(ranks < 1 << 24, "the divisor is a single-precision number");
    if dtype == DataType::F64 { exact } else { f64::from(exact as f32) }
}

fn extreme(a: f64, b: f64, first: bool) -> f64 {
    match (a.is_nan() || b.is_nan(), first) {
        (true, _) => f64::NAN,
        (false, true) => a,
        (false, false) => b,
    }
}

fn integer(dtype: DataType, op: ReduceOp, a: i128, b: i128, finish: Option<u32>) -> i128 {
    match op {
        ReduceOp::Sum => a + b,
        ReduceOp::Average => {
            let Value::Integer(sum) = read(dtype, &write(dtype, Value::Integer(a + b))) else {
                unreachable!("an integer was written")
            };
            sum / i128::from(finish.unwrap_or(1))
        }
        ReduceOp::Product => a * b,
        ReduceOp::Min => a.min(b),
        ReduceOp::Max => a.max(b),
        ReduceOp::BitAnd => a & b,
        ReduceOp::BitOr => a | b,
        ReduceOp::BitXor => a ^ b,
    }
}

fn read(dtype: DataType, bytes: &[u8]) -> Value {
    macro_rules! native {
        ($type:ty) => {
            <$type>::from_ne_bytes(bytes.try_into().expect("one element"))
        };
    }
    match dtype {
        DataType::F32 => Value::Float(f64::from(native!(f32))),
        DataType::F64 => Value::Float(native!(f64)),
        DataType::F16 => Value::Float(f16::from_bits(native!(u16)).to_f64()),
        DataType::Bf16 => Value::Float(bf16::from_bits(native!(u16)).to_f64()),
        DataType::F8E4M3 => Value::Float(decode_float8(bytes[0], 4, 3)),
        DataType::F8E5M2 => Value::Float(decode_float8(bytes[0], 5, 2)),
        DataType::I8 => Value::Integer(i128::from(native!(i8))),
        DataType::U8 => Value::Integer(i128::from(native!(u8))),
        DataType::I16 => Value::Integer(i128::from(native!(i16))),
        DataType::I32 => Value::Integer(i128::from(native!(i32))),
        DataType::I64 => Value::Integer(i128::from(native!(i64))),
        DataType::Bool => Value::Bool(bytes[0] != 0),
    }
}

/// The element nearest to a value. Narrow floats are given numbers of single precision, and `half`
/// rounds doubles wrongly (it looks at their upper 32 bits only).
fn write(dtype: DataType, value: Value) -> Vec<u8> {
    match (value, dtype) {
        (Value::Bool(truth), _) => vec![u8::from(truth)],
        (Value::Integer(number), _) => number.to_le_bytes()[..dtype.size_bytes()].to_vec(),
        (Value::Float(number), _) if number.is_nan() => canonical_nan(dtype).to_vec(),
        (Value::Float(number), DataType::F64) => number.to_ne_bytes().to_vec(),
        (Value::Float(number), DataType::F32) => (number as f32).to_ne_bytes().to_vec(),
        (Value::Float(number), DataType::F16) => {
            f16::from_f32_const(number as f32).to_ne_bytes().to_vec()
        }
        (Value::Float(number), DataType::Bf16) => {
            bf16::from_f32_const(number as f32).to_ne_bytes().to_vec()
        }
        (Value::Float(number), DataType::F8E4M3) => vec![encode_float8(number, 4, 3)],
        (Value::Float(number), DataType::F8E5M2) => vec![encode_float8(number, 5, 2)],
        (Value::Float(_), _) => unreachable!("{dtype} is no float"),
    }
}

fn canonical_nan(dtype: DataType) -> &'static [u8] {
    match dtype {
        DataType::F64 => &[0, 0, 0, 0, 0, 0, 0xf8, 0x7f],
        DataType::F32 => &[0, 0, 0xc0, 0x7f],
        DataType::F16 => &[0, 0x7e],
        DataType::Bf16 => &[0xc0, 0x7f],
        _ => &[0x7f],
    }
}

/// The number that an 8-bit float stands for, from its definition: sign, exponent, significand.
pub fn decode_float8(code: u8, exponent_bits: u32, significand_bits: u32) -> f64 {
    let sign = if code & 0x80 == 0 { 1.0 } else { -1.0 };
    let exponent = i32::from((code & 0x7f) >> significand_bits);
    let significand = f64::from(code & ((1 << significand_bits) - 1));
    let bias = (1 << (exponent_bits - 1)) - 1;
    let scale = f64::from(1u32 << significand_bits);
    let special = if exponent_bits == 4 { code & 0x7f == 0x7f } else { exponent == 31 };
    sign * match (special, exponent) {
        (true, _) if exponent_bits == 5 && significand == 0.0 => f64::INFINITY,
        (true, _) => f64::NAN,
        (false, 0) => significand / scale * 2f64.powi(1 - bias),
        (false, _) => (1.0 + significand / scale) * 2f64.powi(exponent - bias),
    }
}

/// The 8-bit float nearest to a number, of two equally near the one whose code is even. Beyond the
/// largest number, e4m3 stays there and e5m2 goes to infinity once rounding would reach 2^16.
pub fn encode_float8(number: f64, exponent_bits: u32, significand_bits: u32) -> u8 {
    let sign = if number.is_sign_negative() { 0x80 } else { 0 };
    let magnitude = number.abs();
    if number.is_nan() {
        return 0x7f;
    }
    // Where e4m3 has NaN and e5m2 infinity, the next number would be if there were more codes.
    let (largest, beyond) = if exponent_bits == 4 { (0x7e, 480.0) } else { (0x7b, 65536.0) };
    let number_of = |code: u8| {
        if code > largest { beyond } else { decode_float8(code, exponent_bits, significand_bits) }
    };
    let mut below = 0;
    while below < largest && number_of(below + 1) <= magnitude {
        below += 1;
    }
    let (down, up) = (magnitude - number_of(below), number_of(below + 1) - magnitude);
    let nearest = if up < down || (up == down && below % 2 == 1) { below + 1 } else { below };
    sign | if exponent_bits == 4 { nearest.min(largest) } else { nearest }
}
