//! One block's values to codes and back, 32 at a time, in plain loops over arrays that compilers
//! turn into vectors; by hand where they do not.

use crate::grid::{BETWEEN, LEVELS, MAGNITUDES, THRESHOLDS};
use crate::random::Key;
use crate::scale::BlockScale;

/// 1.5 · 2²³: added to a float below 2²² in magnitude, it leaves that float, rounded to nearest
/// even, in the low bits.
const ROUNDER: f32 = 12_582_912.0;

/// Where stochastic rounding takes its random bits from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dither {
    pub(crate) key: Key,
    /// Index of the block's first element.
    pub(crate) first: u32,
}

/// Applies a function to each of 32 elements, given its index too. Through arrays of its own, which
/// nothing else can overlap, or else compilers give up on vectors.
#[inline(always)]
pub(crate) fn map<T: Copy, U: Copy + Default>(
    input: &[T; 32],
    output: &mut [U; 32],
    function: impl Fn(usize, T) -> U,
) {
    let (input, mut results) = (*input, [U::default(); 32]);
    for index in 0..32 {
        results[index] = function(index, input[index]);
    }
    *output = results;
}

#[inline(always)]
fn round(value: f32) -> i32 {
    (value + ROUNDER).to_bits() as i32 - ROUNDER.to_bits() as i32
}

/// What is added to element `index` of a chunk before it is rounded.
#[inline(always)]
fn dither_of(dither: Option<Dither>, chunk: usize, index: usize) -> f32 {
    dither.map_or(0.0, |d| d.key.dither(d.first + (chunk * 32 + index) as u32))
}

/// Symmetric integers: codes are offset by `2^(bits - 1)`.
#[inline(always)]
pub(crate) fn to_integers<const AVX2: bool>(
    bits: u8,
    values: &[f32],
    step: f32,
    dither: Option<Dither>,
    codes: &mut [u8],
) {
    let (inverse, offset) = (1.0 / step, 1i32 << (bits - 1));
    let limit = offset - 1;
    let chunks = values.as_chunks::<32>().0.iter().zip(codes.as_chunks_mut::<32>().0);
    for (chunk, (values, codes)) in chunks.enumerate() {
        #[cfg(target_arch = "x86_64")]
        if AVX2 && dither.is_none() {
            // SAFETY: AVX2 is set only in functions compiled for it.
            unsafe { avx2::to_integers(values, inverse, limit as i8, codes) };
            continue;
        }
        map(values, codes, |index, value| {
            let rounded = round(value * inverse + dither_of(dither, chunk, index));
            (rounded.clamp(-limit, limit) + offset) as u8
        });
    }
}

/// Undoes [`to_integers`].
#[inline(always)]
pub(crate) fn from_integers(bits: u8, codes: &[u8], step: f32, values: &mut [f32]) {
    let offset = 1i32 << (bits - 1);
    for (codes, values) in codes.as_chunks::<32>().0.iter().zip(values.as_chunks_mut::<32>().0) {
        map(codes, values, |_, code| (i32::from(code) - offset) as f32 * step);
    }
}

/// Integers from 0 at the least value. The scale's step is half of theirs.
#[inline(always)]
pub(crate) fn to_range(
    bits: u8,
    values: &[f32],
    scale: BlockScale,
    dither: Option<Dither>,
    codes: &mut [u8],
) {
    let (inverse, limit) = (1.0 / scale.step, (1i32 << bits) - 1);
    let low = scale.low * 0.5;
    let chunks = values.as_chunks::<32>().0.iter().zip(codes.as_chunks_mut::<32>().0);
    for (chunk, (values, codes)) in chunks.enumerate() {
        map(values, codes, |index, value| {
            // The padding may lie far outside of the range.
            let exact = ((value * 0.5 - low) * inverse).clamp(-1.0, limit as f32 + 1.0);
            round(exact + dither_of(dither, chunk, index)).clamp(0, limit) as u8
        });
    }
}

/// Undoes [`to_range`].
#[inline(always)]
pub(crate) fn from_range(codes: &[u8], scale: BlockScale, values: &mut [f32]) {
    for (codes, values) in codes.as_chunks::<32>().0.iter().zip(values.as_chunks_mut::<32>().0) {
        map(codes, values, |_, code| {
            // In two halves, because the range of finite values may exceed the largest of them.
            let half = i32::from(code) as f32 * scale.step;
            (scale.low + half + half).clamp(-f32::MAX, f32::MAX)
        });
    }
}

/// Codes of the nearest levels of the 4-bit grid.
#[inline(always)]
pub(crate) fn to_grid<const AVX2: bool>(values: &[f32], step: f32, codes: &mut [u8]) {
    let inverse = 1.0 / step;
    for (values, codes) in values.as_chunks::<32>().0.iter().zip(codes.as_chunks_mut::<32>().0) {
        #[cfg(target_arch = "x86_64")]
        if AVX2 {
            // SAFETY: AVX2 is set only in functions compiled for it.
            unsafe { avx2::to_grid(values, inverse, codes) };
            continue;
        }
        map(values, codes, |_, value| {
            let rounded = round(value * inverse).clamp(-127, 127) as i8;
            THRESHOLDS.iter().map(|threshold| u8::from(rounded > *threshold)).sum()
        });
    }
}

/// Undoes [`to_grid`].
#[inline(always)]
pub(crate) fn from_grid<const AVX2: bool>(codes: &[u8], step: f32, values: &mut [f32]) {
    for (codes, values) in codes.as_chunks::<32>().0.iter().zip(values.as_chunks_mut::<32>().0) {
        #[cfg(target_arch = "x86_64")]
        if AVX2 {
            // SAFETY: AVX2 is set only in functions compiled for it.
            unsafe { avx2::from_grid(codes, step, values) };
            continue;
        }
        map(codes, values, |_, code| f32::from(LEVELS[usize::from(code & 15)]) * step);
    }
}

/// An 8-bit float format: bits of significand, exponent bias and largest value.
pub(crate) trait Minifloat {
    const SIGNIFICAND_BITS: u32;
    const BIAS: u32;
    const LARGEST: f32;
    /// 2^(BIAS − 1 + SIGNIFICAND_BITS): the reciprocal of the least subnormal.
    const SUBNORMALS: f32 = f32::from_bits((126 + Self::BIAS + Self::SIGNIFICAND_BITS) << 23);
}

/// OCP E4M3.
pub(crate) struct E4M3;
impl Minifloat for E4M3 {
    const SIGNIFICAND_BITS: u32 = 3;
    const BIAS: u32 = 7;
    const LARGEST: f32 = 448.0;
}

/// OCP E5M2.
pub(crate) struct E5M2;
impl Minifloat for E5M2 {
    const SIGNIFICAND_BITS: u32 = 2;
    const BIAS: u32 = 15;
    const LARGEST: f32 = 57344.0;
}

/// Codes of 8-bit floats.
#[inline(always)]
pub(crate) fn to_minifloats<M: Minifloat>(
    values: &[f32],
    step: f32,
    dither: Option<Dither>,
    codes: &mut [u8],
) {
    let inverse = 1.0 / step;
    let chunks = values.as_chunks::<32>().0.iter().zip(codes.as_chunks_mut::<32>().0);
    for (chunk, (values, codes)) in chunks.enumerate() {
        map(values, codes, |index, value| {
            let random = dither.map(|d| {
                let index = d.first + (chunk * 32 + index) as u32;
                (d.key.bits(index), d.key.dither(index))
            });
            to_minifloat::<M>(value * inverse, random)
        });
    }
}

#[inline(always)]
fn to_minifloat<M: Minifloat>(value: f32, random: Option<(u32, f32)>) -> u8 {
    let dropped = 23 - M::SIGNIFICAND_BITS;
    let magnitude = value.abs().min(M::LARGEST);
    let bits = magnitude.to_bits();
    let round_up = match random {
        None => (1 << (dropped - 1)) - 1 + (bits >> dropped & 1),
        Some((bits, _)) => bits & ((1 << dropped) - 1),
    };
    let rebias = (127 - M::BIAS) << M::SIGNIFICAND_BITS;
    let normal = ((bits + round_up) >> dropped).wrapping_sub(rebias);
    let subnormal = round(magnitude * M::SUBNORMALS + random.map_or(0.0, |(_, dither)| dither));
    let is_normal = bits >= (128 - M::BIAS) << 23;
    let code = if is_normal { normal } else { subnormal as u32 };
    (code | (value.to_bits() >> 24 & 0x80)) as u8
}

/// Undoes [`to_minifloats`].
#[inline(always)]
pub(crate) fn from_minifloats<M: Minifloat>(codes: &[u8], step: f32, values: &mut [f32]) {
    let dropped = 23 - M::SIGNIFICAND_BITS;
    for (codes, values) in codes.as_chunks::<32>().0.iter().zip(values.as_chunks_mut::<32>().0) {
        map(codes, values, |_, code| {
            let magnitude = u32::from(code & 0x7f);
            let normal = (magnitude << dropped) + ((127 - M::BIAS) << 23);
            let subnormal = (magnitude as i32 as f32 * (1.0 / M::SUBNORMALS)).to_bits();
            let is_normal = magnitude >= 1 << M::SIGNIFICAND_BITS;
            let bits = if is_normal { normal } else { subnormal };
            f32::from_bits(bits | u32::from(code & 0x80) << 24) * step
        });
    }
}

/// Codes 1 for negative values (and −0), 0 for others.
#[inline(always)]
pub(crate) fn to_signs(values: &[f32], codes: &mut [u8]) {
    for (values, codes) in values.as_chunks::<32>().0.iter().zip(codes.as_chunks_mut::<32>().0) {
        map(values, codes, |_, value| (value.to_bits() >> 31) as u8);
    }
}

/// Codes of signs (1 if negative) and, above them, magnitudes of the 2-bit grid.
#[inline(always)]
pub(crate) fn to_magnitudes(values: &[f32], step: f32, codes: &mut [u8]) {
    let between = BETWEEN * step;
    for (values, codes) in values.as_chunks::<32>().0.iter().zip(codes.as_chunks_mut::<32>().0) {
        map(values, codes, |_, value| {
            (value.to_bits() >> 31) as u8 | u8::from(value.abs() > between) << 1
        });
    }
}

/// Undoes [`to_magnitudes`].
#[inline(always)]
pub(crate) fn from_magnitudes(codes: &[u8], step: f32, values: &mut [f32]) {
    let [low, high] = MAGNITUDES.map(|magnitude| (magnitude * step).clamp(-f32::MAX, f32::MAX));
    for (codes, values) in codes.as_chunks::<32>().0.iter().zip(values.as_chunks_mut::<32>().0) {
        map(codes, values, |_, code| {
            let magnitude = if code & 2 == 0 { low } else { high };
            f32::from_bits(magnitude.to_bits() ^ u32::from(code & 1) << 31)
        });
    }
}

/// Undoes [`to_signs`].
#[inline(always)]
pub(crate) fn from_signs(codes: &[u8], step: f32, values: &mut [f32]) {
    for (codes, values) in codes.as_chunks::<32>().0.iter().zip(values.as_chunks_mut::<32>().0) {
        map(codes, values, |_, code| f32::from_bits(step.to_bits() ^ u32::from(code) << 31));
    }
}

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2 {
    use std::arch::x86_64::*;

    use super::LEVELS;
    use crate::grid::BUCKETS;
    use crate::smoothing::avx2::Vectors;

    /// 32 values times `inverse`, rounded to nearest even and saturated to 8 bits, in order.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn round(values: &[f32; 32], inverse: f32) -> __m256i {
        // Packing works within halves of vectors: fours of elements come out in turns.
        let turns = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
        _mm256_permutevar8x32_epi32(round_in_turns(values, inverse), turns)
    }

    /// Like [`round`], but for fours of elements in turns: 0, 2, 4, 6, 1, 3, 5, 7.
    #[inline]
    #[target_feature(enable = "avx2")]
    pub(crate) fn round_in_turns(values: &[f32; 32], inverse: f32) -> __m256i {
        let (a, b, c, d) = crate::smoothing::avx2::load(values);
        let inverse = _mm256_set1_ps(inverse);
        let ab = _mm256_packs_epi32(
            _mm256_cvtps_epi32(_mm256_mul_ps(a, inverse)),
            _mm256_cvtps_epi32(_mm256_mul_ps(b, inverse)),
        );
        let cd = _mm256_packs_epi32(
            _mm256_cvtps_epi32(_mm256_mul_ps(c, inverse)),
            _mm256_cvtps_epi32(_mm256_mul_ps(d, inverse)),
        );
        _mm256_packs_epi16(ab, cd)
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn store(codes: &mut [u8; 32], vector: __m256i) {
        // SAFETY: 32 bytes, of any alignment.
        unsafe { _mm256_storeu_si256(codes.as_mut_ptr().cast(), vector) };
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    pub(super) fn to_integers(values: &[f32; 32], inverse: f32, limit: i8, codes: &mut [u8; 32]) {
        store(codes, integer_codes(round(values, inverse), limit));
    }

    /// The integer codes of 32 rounded values.
    #[inline]
    #[target_feature(enable = "avx2")]
    pub(crate) fn integer_codes(rounded: __m256i, limit: i8) -> __m256i {
        let (least, most) = (_mm256_set1_epi8(-limit), _mm256_set1_epi8(limit));
        let clamped = _mm256_min_epi8(_mm256_max_epi8(rounded, least), most);
        // One more than the limit is the offset; for 8 bits it wraps to −128, as it should.
        _mm256_add_epi8(clamped, _mm256_set1_epi8(limit.wrapping_add(1)))
    }

    /// The values of 32 integer codes of less than 8 bits.
    #[inline]
    #[target_feature(enable = "avx2")]
    pub(crate) fn integer_values(codes: __m256i, limit: i8, step: f32) -> Vectors {
        values(_mm256_sub_epi8(codes, _mm256_set1_epi8(limit + 1)), step)
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    pub(super) fn to_grid(values: &[f32; 32], inverse: f32, codes: &mut [u8; 32]) {
        store(codes, grid_codes(round(values, inverse)));
    }

    /// The grid codes of 32 rounded values.
    #[inline]
    #[target_feature(enable = "avx2")]
    pub(crate) fn grid_codes(rounded: __m256i) -> __m256i {
        let upper = _mm256_and_si256(_mm256_srli_epi16::<4>(rounded), _mm256_set1_epi8(15));
        let look_up = |table: &[i8; 16]| {
            // SAFETY: the table has 16 bytes.
            let table = unsafe { _mm_loadu_si128(table.as_ptr().cast()) };
            _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), upper)
        };
        let [first, second] = &BUCKETS.thresholds;
        // A comparison that holds gives −1.
        let above = _mm256_add_epi8(
            _mm256_cmpgt_epi8(rounded, look_up(first)),
            _mm256_cmpgt_epi8(rounded, look_up(second)),
        );
        _mm256_sub_epi8(look_up(&BUCKETS.base), above)
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    pub(super) fn from_grid(codes: &[u8; 32], step: f32, values: &mut [f32; 32]) {
        // SAFETY: 32 bytes, of any alignment.
        let codes = unsafe { _mm256_loadu_si256(codes.as_ptr().cast()) };
        crate::smoothing::avx2::store(grid_values(codes, step), values);
    }

    /// The values of 32 grid codes, all below 16.
    #[inline]
    #[target_feature(enable = "avx2")]
    pub(crate) fn grid_values(codes: __m256i, step: f32) -> Vectors {
        // SAFETY: the table has 16 bytes.
        let table = unsafe { _mm_loadu_si128(LEVELS.as_ptr().cast()) };
        values(_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), codes), step)
    }

    /// 32 signed bytes times `step`.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn values(levels: __m256i, step: f32) -> Vectors {
        let (low, high) = (_mm256_castsi256_si128(levels), _mm256_extracti128_si256::<1>(levels));
        (
            eight_values(low, step),
            eight_values(_mm_unpackhi_epi64(low, low), step),
            eight_values(high, step),
            eight_values(_mm_unpackhi_epi64(high, high), step),
        )
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn eight_values(levels: __m128i, step: f32) -> __m256 {
        let exact = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(levels));
        _mm256_mul_ps(exact, _mm256_set1_ps(step))
    }
}
