//! Floats narrower than single precision, converted with integer arithmetic and no branches so
//! that the compiler vectorises the loops they stand in.

use crate::element::{Float, SignMagnitude, element, ordered_float};

/// IEEE 754 half precision, by its bits.
#[derive(Clone, Copy)]
pub(crate) struct F16(u16);

/// bfloat16, by its bits: the upper half of a single-precision number.
#[derive(Clone, Copy)]
pub(crate) struct Bf16(u16);

/// `float8_e4m3fn`, by its bits (Micikevicius et al., "FP8 Formats for Deep Learning", 2022).
#[derive(Clone, Copy)]
pub(crate) struct E4M3(u8);

/// `float8_e5m2`, by its bits (same source).
#[derive(Clone, Copy)]
pub(crate) struct E5M2(u8);

element!(F16, 2, |bytes| F16(u16::from_ne_bytes(bytes)), |value: F16| value.0.to_ne_bytes());
element!(Bf16, 2, |bytes| Bf16(u16::from_ne_bytes(bytes)), |value: Bf16| value.0.to_ne_bytes());
element!(E4M3, 1, |[byte]: [u8; 1]| E4M3(byte), |value: E4M3| [value.0]);
element!(E5M2, 1, |[byte]: [u8; 1]| E5M2(byte), |value: E5M2| [value.0]);

ordered_float!(F16, i16, u16, largest: 0x7c00, nan: 0x7e00, F16, |value: F16| value.0);
ordered_float!(Bf16, i16, u16, largest: 0x7f80, nan: 0x7fc0, Bf16, |value: Bf16| value.0);
ordered_float!(E4M3, i8, u8, largest: 0x7e, nan: 0x7f, E4M3, |value: E4M3| value.0);
ordered_float!(E5M2, i8, u8, largest: 0x7c, nan: 0x7f, E5M2, |value: E5M2| value.0);

impl Float for Bf16 {
    type Wide = f32;

    #[inline(always)]
    fn widen(self) -> f32 {
        f32::from_bits(u32::from(self.0) << 16)
    }

    #[inline(always)]
    fn narrow(value: f32) -> Self {
        let bits = value.to_bits();
        // Half of the last place kept, less one when that place is even. It cannot turn the
        // canonical NaN into anything else, and it carries the largest numbers into infinity.
        let rounding = 0x7fff + ((bits >> 16) & 1);
        Bf16((bits.wrapping_add(rounding) >> 16) as u16)
    }
}

impl Float for F16 {
    type Wide = f32;

    #[inline(always)]
    fn widen(self) -> f32 {
        let bits = u32::from(self.0);
        Format::F16.widen(bits & 0x7fff, (bits & 0x8000) << 16)
    }

    #[inline(always)]
    fn narrow(value: f32) -> Self {
        let sign = (value.to_bits() >> 16) & 0x8000;
        F16((Format::F16.narrow(value) | sign) as u16)
    }
}

impl Float for E4M3 {
    type Wide = f32;

    #[inline(always)]
    fn widen(self) -> f32 {
        let bits = u32::from(self.0);
        Format::E4M3.widen(bits & 0x7f, (bits & 0x80) << 24)
    }

    #[inline(always)]
    fn narrow(value: f32) -> Self {
        let sign = (value.to_bits() >> 24) & 0x80;
        E4M3((Format::E4M3.narrow(value) | sign) as u8)
    }
}

impl Float for E5M2 {
    type Wide = f32;

    #[inline(always)]
    fn widen(self) -> f32 {
        let bits = u32::from(self.0);
        Format::E5M2.widen(bits & 0x7f, (bits & 0x80) << 24)
    }

    #[inline(always)]
    fn narrow(value: f32) -> Self {
        let sign = (value.to_bits() >> 24) & 0x80;
        E5M2((Format::E5M2.narrow(value) | sign) as u8)
    }
}

/// Layout of a float with fewer exponent bits than single precision. Magnitudes are its bits
/// without the sign.
struct Format {
    /// Stored bits of the significand.
    significand_bits: u32,
    exponent_bias: u32,
    /// The largest magnitude that is not NaN.
    largest: u32,
    /// Whether `largest` is infinity.
    has_infinity: bool,
    /// Magnitude of the canonical NaN.
    nan: u32,
}

const SINGLE_SIGNIFICAND_BITS: u32 = 23;
const SINGLE_BIAS: u32 = 127;
const SINGLE_INFINITY: u32 = 0x7f80_0000;
const SINGLE_NAN: u32 = 0x7fc0_0000;

impl Format {
    const F16: Format = Format {
        significand_bits: 10,
        exponent_bias: 15,
        largest: 0x7c00,
        has_infinity: true,
        nan: 0x7e00,
    };
    const E4M3: Format = Format {
        significand_bits: 3,
        exponent_bias: 7,
        largest: 0x7e,
        has_infinity: false,
        nan: 0x7f,
    };
    const E5M2: Format = Format {
        significand_bits: 2,
        exponent_bias: 15,
        largest: 0x7c,
        has_infinity: true,
        nan: 0x7f,
    };

    /// How far a significand moves between the format and single precision.
    const fn shift(&self) -> u32 {
        SINGLE_SIGNIFICAND_BITS - self.significand_bits
    }

    /// What is added to an exponent to make it one of single precision, in place.
    const fn rebias(&self) -> u32 {
        (SINGLE_BIAS - self.exponent_bias) << SINGLE_SIGNIFICAND_BITS
    }

    /// Single-precision exponent of the format's smallest positive number, biased.
    const fn smallest_exponent(&self) -> u32 {
        SINGLE_BIAS + 1 - self.exponent_bias - self.significand_bits
    }

    /// The single-precision number with this magnitude and this sign (in the top bit).
    #[inline(always)]
    fn widen(&self, magnitude: u32, sign: u32) -> f32 {
        let normal = (magnitude << self.shift()) + self.rebias();
        let step = f32::from_bits(self.smallest_exponent() << SINGLE_SIGNIFICAND_BITS);
        let subnormal = (magnitude as i32 as f32 * step).to_bits();
        let finite = if magnitude < 1 << self.significand_bits { subnormal } else { normal };
        let number =
            if self.has_infinity & (magnitude == self.largest) { SINGLE_INFINITY } else { finite };
        f32::from_bits(sign | if magnitude > self.largest { SINGLE_NAN } else { number })
    }

    /// The magnitude nearest to that of a single-precision number, ties to even; at most the
    /// largest one, unless the number is NaN.
    #[inline(always)]
    fn narrow(&self, value: f32) -> u32 {
        let bits = value.to_bits() & 0x7fff_ffff;
        let half_less_one = (1 << (self.shift() - 1)) - 1;
        let odd = (bits >> self.shift()) & 1;
        let normal =
            bits.wrapping_sub(self.rebias()).wrapping_add(half_less_one + odd) >> self.shift();
        // Adding a number whose last place is worth the format's smallest step makes the
        // processor round to that step.
        let anchor =
            (self.smallest_exponent() + SINGLE_SIGNIFICAND_BITS) << SINGLE_SIGNIFICAND_BITS;
        let subnormal =
            (f32::from_bits(bits) + f32::from_bits(anchor)).to_bits().wrapping_sub(anchor);
        let smallest_normal = self.rebias() + (1 << SINGLE_SIGNIFICAND_BITS);
        let finite = if bits < smallest_normal { subnormal } else { normal };
        if bits > SINGLE_INFINITY { self.nan } else { finite.min(self.largest) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Results of `torch.tensor(x).to(dtype)`, PyTorch 2.15 on the CPU: bits of the number, codes
    /// in e4m3fn and in e5m2.
    const PYTORCH: [(u32, u8, u8); 18] = [
        (0x0000_0000, 0x00, 0x00),
        (0x8000_0000, 0x80, 0x80),
        (0x3f80_0000, 0x38, 0x3c), // 1
        (0xc048_0000, 0xc4, 0xc2), // -3.125, a tie in e4m3fn
        (0x43e0_0000, 0x7e, 0x5f), // 448
        (0x43e8_0000, 0x7e, 0x5f), // 464
        (0x43f0_0000, 0x7e, 0x60), // 480
        (0x4760_0000, 0x7e, 0x7b), // 57344
        (0x476f_ffff, 0x7e, 0x7b), // just below 61440
        (0x4770_0000, 0x7e, 0x7c), // 61440
        (0x7f80_0000, 0x7e, 0x7c), // infinity
        (0xff80_0000, 0xfe, 0xfc), // -infinity
        (0x7fc0_0000, 0x7f, 0x7f), // NaN
        (0x3b00_0000, 0x01, 0x18), // 2^-9
        (0x3a80_0000, 0x00, 0x14), // 2^-10, a tie in e4m3fn
        (0x3700_0000, 0x00, 0x00), // 2^-17, a tie in e5m2
        (0x3700_0001, 0x00, 0x01),
        (0x0000_0001, 0x00, 0x00),
    ];

    #[test]
    fn eight_bit_floats_are_pytorchs() {
        for (bits, e4m3, e5m2) in PYTORCH {
            assert_eq!(E4M3::narrow(f32::from_bits(bits)).0, e4m3, "{bits:#x}");
            assert_eq!(E5M2::narrow(f32::from_bits(bits)).0, e5m2, "{bits:#x}");
        }
    }

    /// Rounding must change from one code to the next exactly half way between their numbers,
    /// where it goes to the even one.
    fn rounds_half_way<T: Float<Wide = f32>>(largest: u16, of: fn(u16) -> T, code: fn(T) -> u16) {
        for lower in 0..largest {
            let (low, high) = (of(lower).widen(), of(lower + 1).widen());
            let half_way = low + (high - low) / 2.0;
            let (below, above) = (half_way.next_down(), half_way.next_up());
            assert_eq!(code(T::narrow(low)), lower);
            assert_eq!(code(T::narrow(below)), lower);
            assert_eq!(code(T::narrow(half_way)), lower + (lower & 1));
            assert_eq!(code(T::narrow(above)), lower + 1);
        }
    }

    #[test]
    fn narrowing_rounds_to_nearest_even() {
        rounds_half_way(0x7e, |code| E4M3(code as u8), |value| value.0.into());
        rounds_half_way(0x7b, |code| E5M2(code as u8), |value| value.0.into());
        rounds_half_way(0x7bff, F16, |value| value.0);
        rounds_half_way(0x7f7f, Bf16, |value| value.0);
    }
}
