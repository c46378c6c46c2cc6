//! The randomized Hadamard transform, which spreads an outlier over its block: a quantizer whose
//! step follows the largest magnitude then has less to cover. (Suresh et al., "Distributed mean
//! estimation with limited communication", 2017; on gradients: SDP4Bit, arXiv 2410.15526.)
//!
//! The forward transform is H·D / n and the backward one D·H, D being fixed random signs and H the
//! Hadamard matrix in natural order: orthonormal but for the power of two √n, which is left out so
//! that values up to `f32::MAX` do not overflow on their way in.

use crate::quantize::map;
use crate::random::sign_bit;

/// The largest block.
pub(crate) const MAX_BLOCK: usize = 512;

static SIGNS: [u32; MAX_BLOCK] = {
    let mut signs = [0; MAX_BLOCK];
    let mut index = 0;
    while index < MAX_BLOCK {
        signs[index] = sign_bit(index);
        index += 1;
    }
    signs
};

/// Transforms one block: all of it if its length is a power of two, else 32 elements at a time.
#[inline(always)]
pub(crate) fn smooth<const AVX2: bool>(block: &mut [f32], full: usize) {
    let length = if block.len() == full { full } else { 32 };
    let factor = 1.0 / length as f32;
    for piece in block.chunks_exact_mut(length) {
        for (chunk, signs) in piece.as_chunks_mut::<32>().0.iter_mut().zip(SIGNS.as_chunks().0) {
            let signs: &[u32; 32] = signs;
            map(&{ *chunk }, chunk, |index, value| {
                f32::from_bits(value.to_bits() ^ signs[index]) * factor
            });
        }
        hadamard::<AVX2>(piece);
    }
}

/// Undoes [`smooth`].
#[inline(always)]
pub(crate) fn unsmooth<const AVX2: bool>(block: &mut [f32], full: usize) {
    let length = if block.len() == full { full } else { 32 };
    for piece in block.chunks_exact_mut(length) {
        hadamard::<AVX2>(piece);
        for (chunk, signs) in piece.as_chunks_mut::<32>().0.iter_mut().zip(SIGNS.as_chunks().0) {
            let signs: &[u32; 32] = signs;
            map(&{ *chunk }, chunk, |index, value| f32::from_bits(value.to_bits() ^ signs[index]));
        }
    }
}

/// The fast Walsh–Hadamard transform, widest butterflies first.
#[inline(always)]
fn hadamard<const AVX2: bool>(values: &mut [f32]) {
    let mut half = values.len() / 2;
    while half >= 32 {
        for pair in values.chunks_exact_mut(2 * half) {
            let (low, high) = pair.split_at_mut(half);
            let (low, high) = (low.as_chunks_mut::<32>().0, high.as_chunks_mut::<32>().0);
            for (low, high) in low.iter_mut().zip(high) {
                butterflies(low, high);
            }
        }
        half /= 2;
    }
    for chunk in values.as_chunks_mut::<32>().0 {
        hadamard32::<AVX2>(chunk);
    }
}

#[inline(always)]
fn butterflies(low: &mut [f32; 32], high: &mut [f32; 32]) {
    let (a, b) = (*low, *high);
    map(&a, low, |index, value| value + b[index]);
    map(&a, high, |index, value| value - b[index]);
}

#[inline(always)]
fn hadamard32<const AVX2: bool>(values: &mut [f32; 32]) {
    #[cfg(target_arch = "x86_64")]
    if AVX2 {
        // SAFETY: AVX2 is set only in functions compiled for it.
        return unsafe { avx2::hadamard32(values) };
    }
    for half in [16, 8, 4, 2, 1] {
        for pair in values.chunks_exact_mut(2 * half) {
            let (low, high) = pair.split_at_mut(half);
            for (low, high) in low.iter_mut().zip(high) {
                (*low, *high) = (*low + *high, *low - *high);
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2 {
    use std::arch::x86_64::*;

    use super::SIGNS;

    /// 32 elements.
    pub(crate) type Vectors = (__m256, __m256, __m256, __m256);

    #[inline]
    #[target_feature(enable = "avx2")]
    pub(super) fn hadamard32(values: &mut [f32; 32]) {
        store(hadamard(load(values)), values);
    }

    /// The signs times the factor of a block: what [`super::smooth`] multiplies by.
    const fn signed_factors<const LENGTH: usize>() -> [f32; LENGTH] {
        let mut factors = [1.0 / LENGTH as f32; LENGTH];
        let mut index = 0;
        while index < LENGTH {
            factors[index] = f32::from_bits(factors[index].to_bits() ^ SIGNS[index]);
            index += 1;
        }
        factors
    }

    /// Minus zero where a sign is flipped, else zero.
    static FLIPS: [[f32; 32]; 4] = {
        let mut flips = [[0.0; 32]; 4];
        let mut index = 0;
        while index < 128 {
            flips[index / 32][index % 32] = f32::from_bits(SIGNS[index]);
            index += 1;
        }
        flips
    };

    static FACTORS_32: [f32; 32] = signed_factors();
    static FACTORS_128: [f32; 128] = signed_factors();

    /// [`super::smooth`] of one block of 32, left in registers, in an order of its own.
    ///
    /// The stages inside a vector work on pairs of vectors. Each brings the elements that meet into
    /// the same places of two vectors, and what that mixes up stays so: of p and q are left
    /// p0 p2 p4 p6 q0 q2 q4 q6 and p1 p3 p5 p7 q1 q3 q5 q7. Packed to bytes within halves of
    /// vectors, eights of elements are in order but for [`SMOOTHED_PLACES`].
    #[inline]
    #[target_feature(enable = "avx2")]
    pub(crate) fn smooth32(values: &[f32; 32]) -> Vectors {
        let (a, b, c, d) = load(values);
        let (e, f, g, h) = load(&FACTORS_32);
        let (a, b) = (_mm256_mul_ps(a, e), _mm256_mul_ps(b, f));
        let (c, d) = (_mm256_mul_ps(c, g), _mm256_mul_ps(d, h));
        smooth_within((a, b, c, d))
    }

    /// [`super::smooth`] of one block of 128, each 32 of it in the order of [`smooth32`].
    #[inline]
    #[target_feature(enable = "avx2")]
    pub(crate) fn smooth128(values: &[f32; 128], smoothed: &mut [[f32; 32]; 4]) {
        let (values, factors) = (values.as_chunks::<8>().0, FACTORS_128.as_chunks::<8>().0);
        for column in 0..4 {
            let signed = |row: usize| {
                let at = 4 * row + column;
                _mm256_mul_ps(load8(&values[at]), load8(&factors[at]))
            };
            let (a, b, c, d) = across((signed(0), signed(1), signed(2), signed(3)));
            for (row, vector) in smoothed.iter_mut().zip([a, b, c, d]) {
                store8(vector, &mut row.as_chunks_mut().0[column]);
            }
        }
        for row in smoothed {
            store(smooth_within(load(row)), row);
        }
    }

    /// The stages within 32 elements.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn smooth_within(vectors: Vectors) -> Vectors {
        let (a, b, c, d) = across(vectors);
        let (a, b) = smooth_pair(a, b);
        let (c, d) = smooth_pair(c, d);
        (a, b, c, d)
    }

    /// Where the elements of eight packed ones are after [`smooth32`].
    pub(crate) const SMOOTHED_PLACES: [u8; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

    #[inline]
    #[target_feature(enable = "avx2")]
    fn smooth_pair(p: __m256, q: __m256) -> (__m256, __m256) {
        let halves = (_mm256_permute2f128_ps::<0x20>(p, q), _mm256_permute2f128_ps::<0x31>(p, q));
        let (p, q) = butterfly(halves);
        let (p, q) = butterfly((_mm256_unpacklo_ps(p, q), _mm256_unpackhi_ps(p, q)));
        butterfly((_mm256_unpacklo_ps(p, q), _mm256_unpackhi_ps(p, q)))
    }

    /// How the elements 0 to 7 of a vector must stand for [`unsmooth32`].
    pub(crate) const UNSMOOTHED_ORDER: [u8; 8] = [0, 1, 4, 5, 2, 3, 6, 7];

    /// [`super::unsmooth`] of one block of 32 whose vectors are each in [`UNSMOOTHED_ORDER`]; the
    /// result is in order.
    #[inline]
    #[target_feature(enable = "avx2")]
    pub(crate) fn unsmooth32(vectors: Vectors) -> Vectors {
        unsmooth_within(vectors, 0)
    }

    /// [`super::unsmooth`] of one block of 128, like [`unsmooth32`].
    #[inline]
    #[target_feature(enable = "avx2")]
    pub(crate) fn unsmooth128(rows: [Vectors; 4]) -> [Vectors; 4] {
        let [p, q, r, s] = rows;
        let (a, b) = (across((p.0, q.0, r.0, s.0)), across((p.1, q.1, r.1, s.1)));
        let (c, d) = (across((p.2, q.2, r.2, s.2)), across((p.3, q.3, r.3, s.3)));
        [
            unsmooth_within((a.0, b.0, c.0, d.0), 0),
            unsmooth_within((a.1, b.1, c.1, d.1), 1),
            unsmooth_within((a.2, b.2, c.2, d.2), 2),
            unsmooth_within((a.3, b.3, c.3, d.3), 3),
        ]
    }

    /// The stages within the elements from `32 * row` on, and their signs.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn unsmooth_within(vectors: Vectors, row: usize) -> Vectors {
        let (a, b, c, d) = across(vectors);
        let (a, b) = unsmooth_pair(a, b);
        let (c, d) = unsmooth_pair(c, d);
        flip_signs((a, b, c, d), row)
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn unsmooth_pair(p: __m256, q: __m256) -> (__m256, __m256) {
        let (p, q) = butterfly((_mm256_unpacklo_ps(p, q), _mm256_unpackhi_ps(p, q)));
        let halves = (_mm256_permute2f128_ps::<0x20>(p, q), _mm256_permute2f128_ps::<0x31>(p, q));
        let (p, q) = butterfly(halves);
        let (p, q) = butterfly((_mm256_unpacklo_ps(p, q), _mm256_unpackhi_ps(p, q)));
        (_mm256_unpacklo_ps(p, q), _mm256_unpackhi_ps(p, q))
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn butterfly((low, high): (__m256, __m256)) -> (__m256, __m256) {
        (_mm256_add_ps(low, high), _mm256_sub_ps(low, high))
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    pub(crate) fn load(values: &[f32; 32]) -> Vectors {
        let at = values.as_ptr();
        // SAFETY: four loads of eight elements cover the 32 of the array.
        unsafe {
            (
                _mm256_loadu_ps(at),
                _mm256_loadu_ps(at.add(8)),
                _mm256_loadu_ps(at.add(16)),
                _mm256_loadu_ps(at.add(24)),
            )
        }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    pub(crate) fn store((a, b, c, d): Vectors, values: &mut [f32; 32]) {
        let at = values.as_mut_ptr();
        // SAFETY: four stores of eight elements cover the 32 of the array.
        unsafe {
            _mm256_storeu_ps(at, a);
            _mm256_storeu_ps(at.add(8), b);
            _mm256_storeu_ps(at.add(16), c);
            _mm256_storeu_ps(at.add(24), d);
        }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn flip_signs((a, b, c, d): Vectors, row: usize) -> Vectors {
        let (e, f, g, h) = load(&FLIPS[row]);
        (_mm256_xor_ps(a, e), _mm256_xor_ps(b, f), _mm256_xor_ps(c, g), _mm256_xor_ps(d, h))
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn load8(values: &[f32; 8]) -> __m256 {
        // SAFETY: eight elements, of any alignment.
        unsafe { _mm256_loadu_ps(values.as_ptr()) }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn store8(vector: __m256, values: &mut [f32; 8]) {
        // SAFETY: eight elements, of any alignment.
        unsafe { _mm256_storeu_ps(values.as_mut_ptr(), vector) };
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn hadamard(vectors: Vectors) -> Vectors {
        let (a, b, c, d) = across(vectors);
        (within(a), within(b), within(c), within(d))
    }

    /// The two stages between vectors.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn across((a, b, c, d): Vectors) -> Vectors {
        let (a, c) = butterfly((a, c));
        let (b, d) = butterfly((b, d));
        let (a, b) = butterfly((a, b));
        let (c, d) = butterfly((c, d));
        (a, b, c, d)
    }

    /// The three stages inside a vector: each adds to it, with the signs of the second elements of
    /// the pairs flipped, itself with the pairs swapped.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn within(x: __m256) -> __m256 {
        let flip_4 = _mm256_setr_ps(0.0, 0.0, 0.0, 0.0, -0.0, -0.0, -0.0, -0.0);
        let flip_2 = _mm256_setr_ps(0.0, 0.0, -0.0, -0.0, 0.0, 0.0, -0.0, -0.0);
        let flip_1 = _mm256_setr_ps(0.0, -0.0, 0.0, -0.0, 0.0, -0.0, 0.0, -0.0);
        let x = _mm256_add_ps(_mm256_permute2f128_ps::<1>(x, x), _mm256_xor_ps(x, flip_4));
        let x = _mm256_add_ps(_mm256_permute_ps::<0b01_00_11_10>(x), _mm256_xor_ps(x, flip_2));
        _mm256_add_ps(_mm256_permute_ps::<0b10_11_00_01>(x), _mm256_xor_ps(x, flip_1))
    }
}
