//! Elements: how each data type is read from bytes and what can be done with two of them.

use std::ops::{Add, Div, Mul};

/// An element that can be read from and written to its bytes, in the machine's order.
pub(crate) trait Element: Copy {
    /// The element in memory: an array of bytes, so of any alignment.
    type Bytes: Copy;

    fn from_bytes(bytes: Self::Bytes) -> Self;
    fn to_bytes(self) -> Self::Bytes;

    /// The whole elements of a buffer.
    fn split(buffer: &[u8]) -> &[Self::Bytes];
    fn split_mut(buffer: &mut [u8]) -> &mut [Self::Bytes];
}

/// Elements that can be added, multiplied and divided by a number of ranks.
pub(crate) trait Arithmetic: Element {
    fn sum(self, other: Self) -> Self;
    fn product(self, other: Self) -> Self;
    fn divided_by(self, ranks: u32) -> Self;
    /// The sum divided by the number of ranks; narrow floats are rounded once, at the end.
    fn average(self, other: Self, ranks: u32) -> Self;
}

/// Elements of which one is the smaller, however they are presented.
pub(crate) trait Ordered: Element {
    fn minimum(self, other: Self) -> Self;
    fn maximum(self, other: Self) -> Self;
}

/// Elements that are sets of bits.
pub(crate) trait Bitwise: Element {
    fn and(self, other: Self) -> Self;
    fn or(self, other: Self) -> Self;
    fn xor(self, other: Self) -> Self;
}

/// A floating-point element and the type that it is computed in.
pub(crate) trait Float: Element {
    type Wide: Wide;

    fn widen(self) -> Self::Wide;
    /// Rounds to nearest, ties to even. A NaN must be canonical.
    fn narrow(value: Self::Wide) -> Self;
}

/// A floating-point type that the processor computes in.
pub(crate) trait Wide:
    Copy + Add<Output = Self> + Mul<Output = Self> + Div<Output = Self>
{
    fn from_ranks(ranks: u32) -> Self;
    /// Replaces any NaN by the canonical one. Processors differ in the sign of the NaN that they
    /// make and propagate the payload of either operand; ranks must agree on every bit.
    fn canonical(self) -> Self;
}

/// Implements [`Element`] for a type with the given conversions to and from arrays of bytes.
macro_rules! element {
    ($type:ty, $size:literal, $from:expr, $to:expr) => {
        impl $crate::element::Element for $type {
            type Bytes = [u8; $size];

            #[inline(always)]
            fn from_bytes(bytes: Self::Bytes) -> Self {
                $from(bytes)
            }

            #[inline(always)]
            fn to_bytes(self) -> Self::Bytes {
                $to(self)
            }

            #[inline(always)]
            fn split(buffer: &[u8]) -> &[Self::Bytes] {
                buffer.as_chunks().0
            }

            #[inline(always)]
            fn split_mut(buffer: &mut [u8]) -> &mut [Self::Bytes] {
                buffer.as_chunks_mut().0
            }
        }
    };
}
pub(crate) use element;

macro_rules! native_float {
    ($type:ident, $size:literal, $canonical_nan:literal) => {
        element!($type, $size, $type::from_ne_bytes, $type::to_ne_bytes);

        impl Float for $type {
            type Wide = $type;

            #[inline(always)]
            fn widen(self) -> $type {
                self
            }

            #[inline(always)]
            fn narrow(value: $type) -> $type {
                value
            }
        }

        impl Wide for $type {
            #[inline(always)]
            fn from_ranks(ranks: u32) -> $type {
                ranks as $type
            }

            #[inline(always)]
            fn canonical(self) -> $type {
                if self.is_nan() { $type::from_bits($canonical_nan) } else { self }
            }
        }
    };
}

native_float!(f32, 4, 0x7fc0_0000);
native_float!(f64, 8, 0x7ff8_0000_0000_0000);

impl<T: Float> Arithmetic for T {
    #[inline(always)]
    fn sum(self, other: Self) -> Self {
        T::narrow((self.widen() + other.widen()).canonical())
    }

    #[inline(always)]
    fn product(self, other: Self) -> Self {
        T::narrow((self.widen() * other.widen()).canonical())
    }

    #[inline(always)]
    fn divided_by(self, ranks: u32) -> Self {
        T::narrow((self.widen() / T::Wide::from_ranks(ranks)).canonical())
    }

    #[inline(always)]
    fn average(self, other: Self, ranks: u32) -> Self {
        let sum = self.widen() + other.widen();
        T::narrow((sum / T::Wide::from_ranks(ranks)).canonical())
    }
}

/// Implements [`Ordered`] on the bits of a float: a sign and a magnitude that grows with its bits.
macro_rules! ordered_float {
    ($type:ty, $signed:ty, $unsigned:ty, largest: $largest:literal, nan: $nan:literal,
     $from_bits:expr, $to_bits:expr) => {
        impl $crate::element::Ordered for $type {
            #[inline(always)]
            fn minimum(self, other: Self) -> Self {
                let (a, b) = ($to_bits(self) as $signed, $to_bits(other) as $signed);
                let smaller = if Self::order_key(a) < Self::order_key(b) { a } else { b };
                $from_bits(Self::unless_nan(a, b, smaller) as $unsigned)
            }

            #[inline(always)]
            fn maximum(self, other: Self) -> Self {
                let (a, b) = ($to_bits(self) as $signed, $to_bits(other) as $signed);
                let larger = if Self::order_key(a) > Self::order_key(b) { a } else { b };
                $from_bits(Self::unless_nan(a, b, larger) as $unsigned)
            }
        }

        impl SignMagnitude for $type {
            type Bits = $signed;

            #[inline(always)]
            fn order_key(bits: $signed) -> $signed {
                bits ^ ((bits >> (<$signed>::BITS - 1)) & <$signed>::MAX)
            }

            #[inline(always)]
            fn unless_nan(a: $signed, b: $signed, chosen: $signed) -> $signed {
                let magnitude = (a & <$signed>::MAX).max(b & <$signed>::MAX);
                if magnitude > $largest { $nan } else { chosen }
            }
        }
    };
}
pub(crate) use ordered_float;

/// The order of floats, on their bits read as a signed integer.
pub(crate) trait SignMagnitude {
    type Bits;

    /// An integer that grows with the number (IEEE 754 `totalOrder`).
    fn order_key(bits: Self::Bits) -> Self::Bits;
    /// `chosen`, or the canonical NaN when `a` or `b` is NaN.
    fn unless_nan(a: Self::Bits, b: Self::Bits, chosen: Self::Bits) -> Self::Bits;
}

ordered_float!(f32, i32, u32, largest: 0x7f80_0000, nan: 0x7fc0_0000, f32::from_bits, f32::to_bits);
ordered_float!(f64, i64, u64, largest: 0x7ff0_0000_0000_0000, nan: 0x7ff8_0000_0000_0000,
    f64::from_bits, f64::to_bits);

macro_rules! integer {
    ($type:ident, $size:literal) => {
        element!($type, $size, $type::from_ne_bytes, $type::to_ne_bytes);

        impl Arithmetic for $type {
            #[inline(always)]
            fn sum(self, other: Self) -> Self {
                self.wrapping_add(other)
            }

            #[inline(always)]
            fn product(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }

            #[inline(always)]
            fn divided_by(self, ranks: u32) -> Self {
                // In 64 bits, because the number of ranks may not fit the element.
                (self as i64 / i64::from(ranks)) as $type
            }

            #[inline(always)]
            fn average(self, other: Self, ranks: u32) -> Self {
                self.sum(other).divided_by(ranks)
            }
        }

        impl Ordered for $type {
            #[inline(always)]
            fn minimum(self, other: Self) -> Self {
                self.min(other)
            }

            #[inline(always)]
            fn maximum(self, other: Self) -> Self {
                self.max(other)
            }
        }

        bitwise!($type);
    };
}

macro_rules! bitwise {
    ($type:ty) => {
        impl Bitwise for $type {
            #[inline(always)]
            fn and(self, other: Self) -> Self {
                self & other
            }

            #[inline(always)]
            fn or(self, other: Self) -> Self {
                self | other
            }

            #[inline(always)]
            fn xor(self, other: Self) -> Self {
                self ^ other
            }
        }
    };
}

integer!(i8, 1);
integer!(u8, 1);
integer!(i16, 2);
integer!(i32, 4);
integer!(i64, 8);

element!(bool, 1, |[byte]: [u8; 1]| byte != 0, |truth| [u8::from(truth)]);
bitwise!(bool);
