//! The default 4-bit codec (grid, blocks of 32, super-groups, smoothing) once more for AVX2, whole
//! super-groups at a time: a block stays in four registers from smoothing to its extent, and from
//! its codes to the decoded values.

use std::arch::x86_64::*;

use crate::format::{Format, Scale};
use crate::layout::{Layout, SUPER_GROUP};
use crate::quantize::avx2::{grid_codes, grid_values, round_in_turns};
use crate::scale::{INFINITE, from_bf16, step_bits};
use crate::smoothing::avx2::{
    SMOOTHED_PLACES, UNSMOOTHED_ORDER, Vectors, load, smooth32, store, unsmooth32,
};
use crate::target::Target;

/// Elements of a super-group.
const GROUP: usize = 32 * SUPER_GROUP;
const PAYLOAD: usize = GROUP / 2;
const NOT_FINITE: u8 = 0x80;

/// Smoothed blocks in the order of [`smooth32`], such that no vector lies across two cache lines.
#[repr(align(64))]
struct Smoothed([[f32; 32]; SUPER_GROUP]);

/// Whether this is the codec for such values, and they are a whole group.
#[inline(always)]
pub(crate) fn applies(layout: &Layout, count: usize) -> bool {
    let codec = layout.codec;
    codec.format == Format::Grid4
        && codec.smoothing
        && codec.scale == Scale::SuperGroup
        && layout.block == 32
        && count == GROUP
}

/// Encodes a group.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn encode(layout: &Layout, group: usize, values: &[f32], wire: &mut [u8]) {
    let mut smoothed = Smoothed([[0.0; 32]; SUPER_GROUP]);
    let zero = _mm256_setzero_si256();
    let (mut magnitudes, mut largest) = ([zero; SUPER_GROUP], [zero; SUPER_GROUP]);
    for (index, block) in values.as_chunks::<32>().0.iter().take(SUPER_GROUP).enumerate() {
        let vectors = smooth32(block);
        store(vectors, &mut smoothed.0[index]);
        (magnitudes[index], largest[index]) = extents(vectors);
    }
    let (magnitudes, largest) = (largest_of_each(magnitudes), largest_of_each(largest));
    let is_finite = _mm256_cmpgt_epi32(_mm256_set1_epi32(INFINITE as i32), magnitudes);
    let finite = _mm256_and_si256(magnitudes, is_finite);
    let shared = step_bits(f32::from_bits(largest_of_all(finite)), 127.0 * 127.0);
    wire[2 * group..2 * group + 2].copy_from_slice(&shared.to_le_bytes());
    let shared = from_bf16(shared);
    let exact = _mm256_castsi256_ps(finite);
    let exact = _mm256_mul_ps(exact, _mm256_set1_ps(1.0 / (shared * 127.0)));
    let fraction = _mm256_max_ps(_mm256_ceil_ps(exact), _mm256_set1_ps(1.0));
    let fraction = _mm256_min_ps(fraction, _mm256_set1_ps(127.0));
    let positive = _mm256_castsi256_ps(_mm256_cmpeq_epi32(magnitudes, largest));
    let signed = _mm256_xor_ps(fraction, _mm256_and_ps(positive, _mm256_set1_ps(-0.0)));
    let fractions: &mut [u8] = &mut wire[layout.fractions_start() + group * SUPER_GROUP..];
    fractions[..SUPER_GROUP].copy_from_slice(&stored(signed, is_finite).to_le_bytes());
    let mut inverses = [0.0; SUPER_GROUP];
    let inverse = _mm256_div_ps(_mm256_set1_ps(1.0), _mm256_mul_ps(signed, _mm256_set1_ps(shared)));
    // SAFETY: eight elements, of any alignment.
    unsafe { _mm256_storeu_ps(inverses.as_mut_ptr(), inverse) };
    let is_finite = _mm256_movemask_ps(_mm256_castsi256_ps(is_finite));
    let payload = layout.payload_start() + group * PAYLOAD;
    let payload = wire[payload..payload + PAYLOAD].as_chunks_mut::<16>().0;
    for (index, payload) in payload.iter_mut().enumerate() {
        if is_finite & 1 << index == 0 {
            payload.fill(0);
            continue;
        }
        let codes = grid_codes(round_in_turns(&smoothed.0[index], inverses[index]));
        // SAFETY: 16 bytes, of any alignment.
        unsafe { _mm_storeu_si128(payload.as_mut_ptr().cast(), packed(codes)) };
    }
}

/// The payload of a block: the codes of its first 16 elements below, those of the others above.
#[inline]
#[target_feature(enable = "avx2")]
fn packed(codes: __m256i) -> __m128i {
    // What rounding and smoothing have mixed up: eights of elements are in turns, and each is in
    // the order of smoothing.
    let (first, second) = (_mm256_castsi256_si128(codes), _mm256_extracti128_si256::<1>(codes));
    let (low, high) = (_mm_unpacklo_epi64(first, second), _mm_unpackhi_epi64(first, second));
    let both = _mm_or_si128(low, _mm_slli_epi16::<4>(high));
    _mm_shuffle_epi8(both, eights(SMOOTHED_PLACES))
}

/// Two eights of bytes, each to be brought into the same order by a shuffle.
#[inline]
#[target_feature(enable = "avx2")]
fn eights(order: [u8; 8]) -> __m128i {
    let first = u64::from_le_bytes(order);
    _mm_set_epi64x((first | 0x0808_0808_0808_0808) as i64, first as i64)
}

/// Decodes a group to where its values go: element `start` of the target and the following.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn decode(
    layout: &Layout,
    group: usize,
    wire: &[u8],
    target: &mut Target<'_>,
    start: usize,
) {
    let range = start..start + GROUP;
    match target {
        Target::Store(target) => {
            decode_blocks(layout, group, wire, &mut target[range], |_, values, block| {
                store(values, block);
            });
        }
        Target::Add { local: None, target, divisor } => {
            let divisor = *divisor;
            decode_blocks(layout, group, wire, &mut target[range], |_, values, block| {
                store(sum(load(block), values, divisor), block);
            });
        }
        Target::Add { local: Some(local), target, divisor } => {
            let (divisor, local) = (*divisor, local[range.clone()].as_chunks::<32>().0);
            decode_blocks(layout, group, wire, &mut target[range], |index, values, block| {
                store(sum(load(&local[index]), values, divisor), block);
            });
        }
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn sum(local: Vectors, decoded: Vectors, divisor: Option<f32>) -> Vectors {
    let (a, b) = (_mm256_add_ps(local.0, decoded.0), _mm256_add_ps(local.1, decoded.1));
    let (c, d) = (_mm256_add_ps(local.2, decoded.2), _mm256_add_ps(local.3, decoded.3));
    let Some(divisor) = divisor else { return (a, b, c, d) };
    let divisor = _mm256_set1_ps(divisor);
    (
        _mm256_div_ps(a, divisor),
        _mm256_div_ps(b, divisor),
        _mm256_div_ps(c, divisor),
        _mm256_div_ps(d, divisor),
    )
}

/// Hands each block's number, its decoded values and its place to `put`.
#[inline]
#[target_feature(enable = "avx2")]
fn decode_blocks(
    layout: &Layout,
    group: usize,
    wire: &[u8],
    target: &mut [f32],
    put: impl Fn(usize, Vectors, &mut [f32; 32]),
) {
    let shared = from_bf16(u16::from_le_bytes([wire[2 * group], wire[2 * group + 1]]));
    let fractions = &wire[layout.fractions_start() + group * SUPER_GROUP..][..SUPER_GROUP];
    let payload = layout.payload_start() + group * PAYLOAD;
    let payload = wire[payload..payload + PAYLOAD].as_chunks::<16>().0;
    let order = eights(UNSMOOTHED_ORDER);
    let blocks = target.as_chunks_mut::<32>().0.iter_mut();
    for (index, ((block, &fraction), payload)) in blocks.zip(fractions).zip(payload).enumerate() {
        let step =
            if fraction == NOT_FINITE { f32::NAN } else { f32::from(fraction as i8) * shared };
        // SAFETY: 16 bytes, of any alignment.
        let packed = unsafe { _mm_loadu_si128(payload.as_ptr().cast()) };
        let packed = _mm_shuffle_epi8(packed, order);
        let both = _mm256_set_m128i(_mm_srli_epi16::<4>(packed), packed);
        let codes = _mm256_and_si256(both, _mm256_set1_epi8(15));
        put(index, unsmooth32(grid_values(codes, step)), block);
    }
}

/// Of each of the eight columns of a block, bits of the largest magnitude and of the largest value.
/// As integers, positive floats are ordered and negative ones lie below them.
#[inline]
#[target_feature(enable = "avx2")]
fn extents((a, b, c, d): Vectors) -> (__m256i, __m256i) {
    let mask = _mm256_set1_epi32(0x7fff_ffff);
    let (a, b) = (_mm256_castps_si256(a), _mm256_castps_si256(b));
    let (c, d) = (_mm256_castps_si256(c), _mm256_castps_si256(d));
    let largest = _mm256_max_epi32(_mm256_max_epi32(a, b), _mm256_max_epi32(c, d));
    let ab = _mm256_max_epi32(_mm256_and_si256(a, mask), _mm256_and_si256(b, mask));
    let cd = _mm256_max_epi32(_mm256_and_si256(c, mask), _mm256_and_si256(d, mask));
    (_mm256_max_epi32(ab, cd), largest)
}

/// The largest element of each of eight vectors.
#[inline]
#[target_feature(enable = "avx2")]
fn largest_of_each([a, b, c, d, e, f, g, h]: [__m256i; SUPER_GROUP]) -> __m256i {
    let two = |a, b| _mm256_max_epi32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
    let four = |a, b| _mm256_max_epi32(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
    let (low, high) = (four(two(a, b), two(c, d)), four(two(e, f), two(g, h)));
    _mm256_max_epi32(
        _mm256_permute2x128_si256::<0x20>(low, high),
        _mm256_permute2x128_si256::<0x31>(low, high),
    )
}

#[inline]
#[target_feature(enable = "avx2")]
fn largest_of_all(vector: __m256i) -> u32 {
    let four = _mm_max_epi32(_mm256_castsi256_si128(vector), _mm256_extracti128_si256::<1>(vector));
    let two = _mm_max_epi32(four, _mm_shuffle_epi32::<0b01_00_11_10>(four));
    _mm_cvtsi128_si32(_mm_max_epi32(two, _mm_shuffle_epi32::<0b10_11_00_01>(two))) as u32
}

/// The bytes of the fractions of eight blocks.
#[inline]
#[target_feature(enable = "avx2")]
fn stored(fractions: __m256, is_finite: __m256i) -> u64 {
    let marker = _mm256_set1_epi32(NOT_FINITE as i8 as i32);
    let integers = _mm256_blendv_epi8(marker, _mm256_cvtps_epi32(fractions), is_finite);
    let (low, high) = (_mm256_castsi256_si128(integers), _mm256_extracti128_si256::<1>(integers));
    let words = _mm_packs_epi32(low, high);
    _mm_cvtsi128_si64(_mm_packs_epi16(words, words)) as u64
}
