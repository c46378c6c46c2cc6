//! The element types that travel and the operators that combine them.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// The type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum DataType {
    /// IEEE 754 single precision.
    F32 = 0,
    /// IEEE 754 double precision.
    F64 = 1,
    /// IEEE 754 half precision, accumulated in [`DataType::F32`].
    F16 = 2,
    /// bfloat16, accumulated in [`DataType::F32`].
    Bf16 = 3,
    /// Signed 8-bit integer.
    I8 = 4,
    /// Unsigned 8-bit integer.
    U8 = 5,
    /// Signed 16-bit integer.
    I16 = 6,
    /// Signed 32-bit integer.
    I32 = 7,
    /// Signed 64-bit integer.
    I64 = 8,
    /// One byte: 0 is false, anything else true; results are 0 or 1.
    Bool = 9,
    /// 8-bit float with 4 exponent bits, no infinities (`float8_e4m3fn`).
    F8E4M3 = 10,
    /// 8-bit float with 5 exponent bits (`float8_e5m2`).
    F8E5M2 = 11,
}

/// How two elements become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum ReduceOp {
    /// Sum (logical or for [`DataType::Bool`]); integers wrap.
    Sum = 0,
    /// Sum divided by the number of ranks, applied once to the finished sum.
    Average = 1,
    /// Minimum; NaN wins.
    Min = 2,
    /// Maximum; NaN wins.
    Max = 3,
    /// Product; integers wrap.
    Product = 4,
    /// Bitwise and; integers and bool only.
    BitAnd = 5,
    /// Bitwise or; integers and bool only.
    BitOr = 6,
    /// Bitwise exclusive or; integers and bool only.
    BitXor = 7,
}

impl DataType {
    /// Every data type, in the order of their codes.
    pub const ALL: [DataType; 12] = [
        DataType::F32,
        DataType::F64,
        DataType::F16,
        DataType::Bf16,
        DataType::I8,
        DataType::U8,
        DataType::I16,
        DataType::I32,
        DataType::I64,
        DataType::Bool,
        DataType::F8E4M3,
        DataType::F8E5M2,
    ];

    /// Bytes of one element.
    pub const fn size_bytes(self) -> usize {
        match self {
            DataType::F64 | DataType::I64 => 8,
            DataType::F32 | DataType::I32 => 4,
            DataType::F16 | DataType::Bf16 | DataType::I16 => 2,
            DataType::I8 | DataType::U8 | DataType::Bool | DataType::F8E4M3 | DataType::F8E5M2 => 1,
        }
    }

    /// PyTorch's name of the type, such as `float32`.
    pub const fn name(self) -> &'static str {
        self.names()[0]
    }

    /// The canonical name, then the aliases that [`DataType::from_name`] accepts.
    const fn names(self) -> &'static [&'static str] {
        match self {
            DataType::F32 => &["float32", "f32", "fp32", "float"],
            DataType::F64 => &["float64", "f64", "fp64", "double"],
            DataType::F16 => &["float16", "f16", "fp16", "half"],
            DataType::Bf16 => &["bfloat16", "bf16"],
            DataType::I8 => &["int8", "i8"],
            DataType::U8 => &["uint8", "u8", "byte"],
            DataType::I16 => &["int16", "i16", "short"],
            DataType::I32 => &["int32", "i32", "int"],
            DataType::I64 => &["int64", "i64", "long"],
            DataType::Bool => &["bool"],
            DataType::F8E4M3 => &["float8_e4m3fn", "float8_e4m3", "f8e4m3", "e4m3"],
            DataType::F8E5M2 => &["float8_e5m2", "f8e5m2", "e5m2"],
        }
    }

    /// The type of that name or alias, in any case, with or without `torch.` before it.
    pub fn from_name(name: &str) -> Option<Self> {
        let name = strip_prefix_ignoring_case(name, "torch.");
        Self::ALL.into_iter().find(|dtype| is_one_of(name, dtype.names()))
    }

    /// The code that stands for the type on the wire.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The type that a code stands for; `None` for a code that no type has.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }

    /// Whether elements are floating-point numbers.
    pub const fn is_float(self) -> bool {
        use DataType::{Bf16, F8E4M3, F8E5M2, F16, F32, F64};
        matches!(self, F32 | F64 | F16 | Bf16 | F8E4M3 | F8E5M2)
    }

    /// Whether elements are integers ([`DataType::Bool`] is not one).
    pub const fn is_integer(self) -> bool {
        use DataType::{I8, I16, I32, I64, U8};
        matches!(self, I8 | U8 | I16 | I32 | I64)
    }
}

impl ReduceOp {
    /// Every operator, in the order of their codes.
    pub const ALL: [ReduceOp; 8] = [
        ReduceOp::Sum,
        ReduceOp::Average,
        ReduceOp::Min,
        ReduceOp::Max,
        ReduceOp::Product,
        ReduceOp::BitAnd,
        ReduceOp::BitOr,
        ReduceOp::BitXor,
    ];

    /// PyTorch's name of the operator in lower case, such as `avg`.
    pub const fn name(self) -> &'static str {
        self.names()[0]
    }

    /// The canonical name, then the aliases that [`ReduceOp::from_name`] accepts.
    const fn names(self) -> &'static [&'static str] {
        match self {
            ReduceOp::Sum => &["sum"],
            ReduceOp::Average => &["avg", "average", "mean"],
            ReduceOp::Min => &["min", "minimum"],
            ReduceOp::Max => &["max", "maximum"],
            ReduceOp::Product => &["product", "prod"],
            ReduceOp::BitAnd => &["band", "bit_and", "bitand"],
            ReduceOp::BitOr => &["bor", "bit_or", "bitor"],
            ReduceOp::BitXor => &["bxor", "bit_xor", "bitxor"],
        }
    }

    /// The operator of that name or alias, in any case, with or without `ReduceOp.` before it.
    pub fn from_name(name: &str) -> Option<Self> {
        let name = strip_prefix_ignoring_case(name, "ReduceOp.");
        Self::ALL.into_iter().find(|op| is_one_of(name, op.names()))
    }

    /// The code that stands for the operator on the wire.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The operator that a code stands for; `None` for a code that no operator has.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }

    /// Whether the operator can combine elements of that type.
    pub const fn supports(self, dtype: DataType) -> bool {
        match self {
            ReduceOp::Sum | ReduceOp::Product | ReduceOp::Min | ReduceOp::Max => true,
            ReduceOp::Average => !matches!(dtype, DataType::Bool),
            ReduceOp::BitAnd | ReduceOp::BitOr | ReduceOp::BitXor => !dtype.is_float(),
        }
    }
}

/// A name that stands for no data type.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("unknown data type {0:?}; known are {known}", known = list(DataType::ALL.map(DataType::name)))]
pub struct UnknownDataType(pub String);

/// A name that stands for no reduction operator.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("unknown reduction operator {0:?}; known are {known}", known = list(ReduceOp::ALL.map(ReduceOp::name)))]
pub struct UnknownReduceOp(pub String);

impl FromStr for DataType {
    type Err = UnknownDataType;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::from_name(name).ok_or_else(|| UnknownDataType(name.to_owned()))
    }
}

impl FromStr for ReduceOp {
    type Err = UnknownReduceOp;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::from_name(name).ok_or_else(|| UnknownReduceOp(name.to_owned()))
    }
}

impl fmt::Display for DataType {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

/// Names separated by commas, for error messages.
pub(crate) fn list(names: impl IntoIterator<Item = &'static str>) -> String {
    names.into_iter().collect::<Vec<_>>().join(", ")
}

fn is_one_of(name: &str, names: &[&str]) -> bool {
    names.iter().any(|known| known.eq_ignore_ascii_case(name))
}

fn strip_prefix_ignoring_case<'a>(name: &'a str, prefix: &str) -> &'a str {
    match name.split_at_checked(prefix.len()) {
        Some((head, tail)) if head.eq_ignore_ascii_case(prefix) => tail,
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_names_lead_back() {
        for dtype in DataType::ALL {
            assert_eq!(DataType::from_code(dtype.code()), Some(dtype));
            for name in dtype.names() {
                assert_eq!(name.parse(), Ok(dtype));
            }
            assert_eq!(format!("torch.{dtype}").parse(), Ok(dtype));
        }
        for op in ReduceOp::ALL {
            assert_eq!(ReduceOp::from_code(op.code()), Some(op));
            for name in op.names() {
                assert_eq!(name.to_uppercase().parse(), Ok(op));
            }
            assert_eq!(format!("ReduceOp.{op}").parse(), Ok(op));
        }
        assert_eq!(DataType::from_code(12), None);
        assert_eq!(ReduceOp::from_code(8), None);
    }

    #[test]
    fn errors_say_what_works() {
        let error = "float31".parse::<DataType>().unwrap_err().to_string();
        assert!(error.starts_with("unknown data type \"float31\"; known are float32, "), "{error}");
        let error = "é".parse::<ReduceOp>().unwrap_err().to_string();
        assert!(
            error.ends_with("known are sum, avg, min, max, product, band, bor, bxor"),
            "{error}"
        );
    }
}
