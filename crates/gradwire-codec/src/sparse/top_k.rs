//! The k values of largest magnitude.

use crate::instructions::{InstructionSet, multiversion};

/// About how many values are looked at to guess the threshold.
const SAMPLES: usize = 4096;
/// Values that are compared at once.
const CHUNK: usize = 64;

/// The indices of the `k` values of largest magnitude, ascending, into `indices` (which is cleared).
/// All indices if there are no more than `k` values. NaN and infinities count as the largest, NaN
/// above all; of equal magnitudes the first ones are taken.
///
/// A threshold guessed from a sample (as in Deep Gradient Compression, arXiv 1712.01887) leaves a
/// few candidates, among which the choice is exact.
///
/// # Panics
///
/// If there are more than 2³² values.
pub fn top_k(values: &[f32], k: usize, indices: &mut Vec<u32>) {
    assert!(u32::try_from(values.len()).is_ok(), "top-k takes at most 2³² − 1 values");
    indices.clear();
    if k >= values.len() {
        indices.extend(0..values.len() as u32);
        return;
    }
    if k == 0 {
        return;
    }
    let mut threshold = sampled_threshold(values, k);
    loop {
        // SAFETY: the instruction set is available, as the best one is.
        unsafe { select(InstructionSet::best(), values, threshold, indices) };
        if indices.len() >= k {
            break;
        }
        // Too few: the values sampled were not like the others.
        threshold = if threshold > 0x0100_0000 { threshold - 0x0080_0000 } else { 0 };
        indices.clear();
    }
    keep_largest(values, k, indices);
}

/// Bits of a magnitude; as integers they have its order.
fn magnitude(value: f32) -> u32 {
    value.to_bits() & 0x7fff_ffff
}

/// A magnitude that somewhat more than `k` values probably reach.
fn sampled_threshold(values: &[f32], k: usize) -> u32 {
    // An odd stride, so that rows of a matrix are sampled at all of their columns.
    let stride = (values.len() / SAMPLES) | 1;
    let mut sample: Vec<u32> = values.iter().step_by(stride).map(|v| magnitude(*v)).collect();
    let expected = k as f64 * sample.len() as f64 / values.len() as f64;
    // Four standard deviations more, so that a second pass is rare.
    let rank = (expected + 4.0 * expected.sqrt() + 4.0) as usize;
    if rank >= sample.len() {
        return 0;
    }
    let (_, threshold, _) = sample.select_nth_unstable_by(rank, |a, b| b.cmp(a));
    *threshold
}

multiversion! {
    /// Appends the indices of all values whose magnitude has bits of at least `threshold`.
    select(values: &[f32], threshold: u32, indices: &mut Vec<u32>) = select_with
}

#[inline(always)]
fn select_with<const AVX2: bool>(values: &[f32], threshold: u32, indices: &mut Vec<u32>) {
    let (chunks, rest) = values.as_chunks::<CHUNK>();
    for (number, chunk) in chunks.iter().enumerate() {
        let mut mask = reached::<AVX2>(chunk, threshold);
        while mask != 0 {
            indices.push((number * CHUNK) as u32 + mask.trailing_zeros());
            mask &= mask - 1;
        }
    }
    let start = chunks.len() * CHUNK;
    for (offset, value) in rest.iter().enumerate() {
        if magnitude(*value) >= threshold {
            indices.push((start + offset) as u32);
        }
    }
}

/// One bit for each value whose magnitude reaches the threshold.
#[inline(always)]
fn reached<const AVX2: bool>(chunk: &[f32; CHUNK], threshold: u32) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if AVX2 {
        // SAFETY: AVX2 is set only in functions compiled for it.
        return unsafe { avx2::reached(chunk, threshold) };
    }
    let mut mask = 0;
    for (bit, value) in chunk.iter().enumerate() {
        mask |= u64::from(magnitude(*value) >= threshold) << bit;
    }
    mask
}

/// Keeps the indices of the `k` largest of the values at `indices`, in order.
fn keep_largest(values: &[f32], k: usize, indices: &mut Vec<u32>) {
    let mut magnitudes: Vec<u32> =
        indices.iter().map(|index| magnitude(values[*index as usize])).collect();
    let (above, &mut least, _) = magnitudes.select_nth_unstable_by(k - 1, |a, b| b.cmp(a));
    // Of those equal to the least that is kept, the first ones.
    let mut equal = k - above.iter().filter(|magnitude| **magnitude > least).count();
    indices.retain(|index| {
        let magnitude = magnitude(values[*index as usize]);
        let takes_equal = magnitude == least && equal > 0;
        equal -= usize::from(takes_equal);
        magnitude > least || takes_equal
    });
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::*;

    use super::CHUNK;

    #[inline]
    #[target_feature(enable = "avx2")]
    pub(super) fn reached(chunk: &[f32; CHUNK], threshold: u32) -> u64 {
        let sign = _mm256_set1_epi32(0x7fff_ffff);
        // Magnitudes are positive as signed integers, so that a signed comparison will do.
        let below = _mm256_set1_epi32(threshold as i32 - 1);
        let mut mask = 0;
        for (part, eight) in chunk.as_chunks::<8>().0.iter().enumerate() {
            // SAFETY: eight elements of four bytes.
            let eight = unsafe { _mm256_loadu_si256(eight.as_ptr().cast()) };
            let above = _mm256_cmpgt_epi32(_mm256_and_si256(eight, sign), below);
            let bits = _mm256_movemask_ps(_mm256_castsi256_ps(above)) as u64;
            mask |= bits << (8 * part);
        }
        mask
    }
}
