//! Half-precision kernels with the processor's own conversions (F16C), which the compiler does not
//! use on its own. Their results are those of the portable kernels, bit for bit.

use std::arch::x86_64::{
    __m128i, __m256, _CMP_UNORD_Q, _MM_FROUND_TO_NEAREST_INT, _mm_loadu_si128, _mm_storeu_si128,
    _mm256_add_ps, _mm256_blendv_ps, _mm256_castsi256_ps, _mm256_cmp_ps, _mm256_cvtph_ps,
    _mm256_cvtps_ph, _mm256_div_ps, _mm256_mul_ps, _mm256_set1_epi32, _mm256_set1_ps,
};

/// Bytes that one step converts: eight elements.
const BLOCK: usize = 16;

#[target_feature(enable = "avx2,f16c")]
pub(crate) fn sum(destination: &mut [u8], local: Option<&[u8]>, received: &[u8], _ranks: u32) {
    combine(destination, local, received, |a, b| _mm256_add_ps(a, b));
}

#[target_feature(enable = "avx2,f16c")]
pub(crate) fn product(destination: &mut [u8], local: Option<&[u8]>, received: &[u8], _ranks: u32) {
    combine(destination, local, received, |a, b| _mm256_mul_ps(a, b));
}

#[target_feature(enable = "avx2,f16c")]
pub(crate) fn average(destination: &mut [u8], local: Option<&[u8]>, received: &[u8], ranks: u32) {
    let ranks = _mm256_set1_ps(ranks as f32);
    combine(destination, local, received, |a, b| _mm256_div_ps(_mm256_add_ps(a, b), ranks));
}

#[target_feature(enable = "avx2,f16c")]
pub(crate) fn divide(buffer: &mut [u8], ranks: u32) {
    let ranks = _mm256_set1_ps(ranks as f32);
    let (blocks, tail) = buffer.as_chunks_mut();
    for block in blocks {
        store(block, _mm256_div_ps(load(block), ranks));
    }
    let mut padded = pad(tail);
    let quotient = _mm256_div_ps(load(&padded), ranks);
    store(&mut padded, quotient);
    tail.copy_from_slice(&padded[..tail.len()]);
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
fn combine(
    destination: &mut [u8],
    local: Option<&[u8]>,
    received: &[u8],
    operator: impl Fn(__m256, __m256) -> __m256,
) {
    let (blocks, tail) = destination.as_chunks_mut();
    let (received_blocks, received_tail) = received.as_chunks();
    let mut padded = match local {
        None => {
            for (block, theirs) in blocks.iter_mut().zip(received_blocks) {
                store(block, operator(load(block), load(theirs)));
            }
            pad(tail)
        }
        Some(local) => {
            let (local_blocks, local_tail) = local.as_chunks();
            for ((block, ours), theirs) in blocks.iter_mut().zip(local_blocks).zip(received_blocks)
            {
                store(block, operator(load(ours), load(theirs)));
            }
            pad(local_tail)
        }
    };
    let combined = operator(load(&padded), load(&pad(received_tail)));
    store(&mut padded, combined);
    tail.copy_from_slice(&padded[..tail.len()]);
}

/// A block that starts with `tail`, which is shorter than one.
#[inline]
fn pad(tail: &[u8]) -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    block[..tail.len()].copy_from_slice(tail);
    block
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
fn load(block: &[u8; BLOCK]) -> __m256 {
    // SAFETY: the block holds the 16 bytes that are read; the load needs no alignment.
    _mm256_cvtph_ps(unsafe { _mm_loadu_si128(block.as_ptr().cast::<__m128i>()) })
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
fn store(block: &mut [u8; BLOCK], values: __m256) {
    let canonical_nan = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc0_0000));
    let is_nan = _mm256_cmp_ps::<_CMP_UNORD_Q>(values, values);
    let canonical = _mm256_blendv_ps(values, canonical_nan, is_nan);
    let rounded = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(canonical);
    // SAFETY: the block holds the 16 bytes that are written; the store needs no alignment.
    unsafe { _mm_storeu_si128(block.as_mut_ptr().cast::<__m128i>(), rounded) }
}
