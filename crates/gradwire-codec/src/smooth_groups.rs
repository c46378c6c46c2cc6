//! The default codecs of 4 bits (grid) and 5 bits (integers) once more for AVX2, whole super-groups of
//! smoothed blocks of 32 at a time: a block stays in four registers from smoothing to its extent, and
//! from its codes to the decoded values.

use std::arch::x86_64::*;

use crate::format::{Format, Rounding, Scale};
use crate::layout::{Layout, SUPER_GROUP};
use crate::quantize::avx2::{
    grid_codes, grid_values, integer_codes, integer_values, round_in_turns,
};
use crate::scale::{INFINITE, from_bf16, step_bits};
use crate::smoothing::avx2::{
    SMOOTHED_PLACES, UNSMOOTHED_ORDER, Vectors, smooth32, store, unsmooth32,
};
use crate::target::{Target, avx2::deliver};

/// Elements of a super-group.
const GROUP: usize = 32 * SUPER_GROUP;
/// The largest 5-bit integer.
const LIMIT: i8 = 15;

/// Smoothed blocks in the order of [`smooth32`], such that no vector lies across two cache lines.
#[repr(align(64))]
struct Smoothed([[f32; 32]; SUPER_GROUP]);

/// The bits of a code if this is one of the codecs, and the values are a whole group.
#[inline(always)]
pub(crate) fn bits(layout: &Layout, count: usize) -> Option<u8> {
    let codec = layout.codec;
    let applies = codec.smoothing
        && codec.scale == Scale::SuperGroup
        && codec.rounding == Rounding::Nearest
        && layout.block == 32
        && count == GROUP;
    match codec.format {
        Format::Grid4 if applies => Some(4),
        Format::Int { bits: 5 } if applies => Some(5),
        _ => None,
    }
}

/// What stands for the fraction of a block that is not finite.
const fn marker<const BITS: usize>() -> u8 {
    if BITS == 4 { 0x80 } else { 0xff }
}

/// Encodes a group.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn encode<const BITS: usize>(
    layout: &Layout,
    group: usize,
    values: &[f32],
    wire: &mut [u8],
) {
    let (unit, most) = if BITS == 4 { (127.0, 127.0) } else { (f32::from(LIMIT), 254.0) };
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
    let shared = step_bits(f32::from_bits(largest_of_all(finite)), unit * most);
    wire[2 * group..2 * group + 2].copy_from_slice(&shared.to_le_bytes());
    let shared = from_bf16(shared);
    let exact = _mm256_castsi256_ps(finite);
    let exact = _mm256_mul_ps(exact, _mm256_set1_ps(1.0 / (shared * unit)));
    let fraction = _mm256_max_ps(_mm256_ceil_ps(exact), _mm256_set1_ps(1.0));
    let fraction = _mm256_min_ps(fraction, _mm256_set1_ps(most));
    let positive = _mm256_castsi256_ps(_mm256_cmpeq_epi32(magnitudes, largest));
    // A grid's scale has the sign that brings its largest value to the end of its levels.
    let sign = _mm256_set1_ps(if BITS == 4 { -0.0 } else { 0.0 });
    let signed = _mm256_xor_ps(fraction, _mm256_and_ps(positive, sign));
    let fractions: &mut [u8] = &mut wire[layout.fractions_start() + group * SUPER_GROUP..];
    fractions[..SUPER_GROUP].copy_from_slice(&stored::<BITS>(signed, is_finite).to_le_bytes());
    let mut inverses = [0.0; SUPER_GROUP];
    let inverse = _mm256_div_ps(_mm256_set1_ps(1.0), _mm256_mul_ps(signed, _mm256_set1_ps(shared)));
    // SAFETY: eight elements, of any alignment.
    unsafe { _mm256_storeu_ps(inverses.as_mut_ptr(), inverse) };
    let is_finite = _mm256_movemask_ps(_mm256_castsi256_ps(is_finite));
    let payload = &mut wire[layout.payload_start() + group * SUPER_GROUP * 4 * BITS..];
    for (index, payload) in payload.chunks_exact_mut(4 * BITS).take(SUPER_GROUP).enumerate() {
        if is_finite & 1 << index == 0 {
            payload.fill(0);
            continue;
        }
        let rounded = round_in_turns(&smoothed.0[index], inverses[index]);
        let codes = if BITS == 4 { grid_codes(rounded) } else { integer_codes(rounded, LIMIT) };
        pack::<BITS>(codes, payload);
    }
}

/// Packs a block: the low four bits of its first 16 codes below those of the others, then a bit of
/// each. Rounding and smoothing have mixed up the codes: eights of them are in turns, and each eight
/// is in the order of smoothing.
#[inline]
#[target_feature(enable = "avx2")]
fn pack<const BITS: usize>(codes: __m256i, payload: &mut [u8]) {
    let (first, second) = (_mm256_castsi256_si128(codes), _mm256_extracti128_si256::<1>(codes));
    let places = eights(SMOOTHED_PLACES);
    let low = _mm_shuffle_epi8(_mm_unpacklo_epi64(first, second), places);
    let high = _mm_shuffle_epi8(_mm_unpackhi_epi64(first, second), places);
    let mask = _mm_set1_epi8(15);
    let nibbles =
        _mm_or_si128(_mm_and_si128(low, mask), _mm_slli_epi16::<4>(_mm_and_si128(high, mask)));
    let (place, rest) = payload.split_at_mut(16);
    // SAFETY: 16 bytes, of any alignment.
    unsafe { _mm_storeu_si128(place.as_mut_ptr().cast(), nibbles) };
    if BITS == 5 {
        rest.copy_from_slice(&fifth_bits(low, high).to_le_bytes());
    }
}

/// Byte `j` has the fifth bits of the codes `j`, `j + 4`, `j + 8`, … from its low bit up.
#[inline]
#[target_feature(enable = "avx2")]
fn fifth_bits(low: __m128i, high: __m128i) -> u32 {
    let fours = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    let (low, high) = (_mm_shuffle_epi8(low, fours), _mm_shuffle_epi8(high, fours));
    let (first, second) = (_mm_unpacklo_epi32(low, high), _mm_unpackhi_epi32(low, high));
    let bits = |codes| _mm_movemask_epi8(_mm_slli_epi16::<3>(codes)) as u32;
    bits(first) | bits(second) << 16
}

/// Undoes [`pack`]; eights of codes come out as [`unsmooth32`] wants them.
#[inline]
#[target_feature(enable = "avx2")]
fn unpack<const BITS: usize>(payload: &[u8]) -> __m256i {
    let (nibbles, rest) = payload.split_at(16);
    // SAFETY: 16 bytes, of any alignment.
    let nibbles = unsafe { _mm_loadu_si128(nibbles.as_ptr().cast()) };
    let both = _mm256_set_m128i(_mm_srli_epi16::<4>(nibbles), nibbles);
    let mut codes = _mm256_and_si256(both, _mm256_set1_epi8(15));
    if BITS == 5 {
        let rest = *rest.first_chunk().expect("a bit for each of 32 codes");
        let selected = _mm256_set1_epi64x(0x0202_0202_0101_0101);
        let selected = _mm256_sllv_epi64(selected, _mm256_setr_epi64x(0, 2, 4, 6));
        let plane = _mm256_and_si256(_mm256_set1_epi32(i32::from_le_bytes(rest)), selected);
        let is_set = _mm256_cmpeq_epi8(plane, selected);
        codes = _mm256_or_si256(codes, _mm256_and_si256(is_set, _mm256_set1_epi8(16)));
    }
    _mm256_shuffle_epi8(codes, _mm256_broadcastsi128_si256(eights(UNSMOOTHED_ORDER)))
}

/// Two eights of bytes, each to be brought into the same order by a shuffle.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn eights(order: [u8; 8]) -> __m128i {
    let first = u64::from_le_bytes(order);
    _mm_set_epi64x((first | 0x0808_0808_0808_0808) as i64, first as i64)
}

/// Decodes a group to where its values go: element `start` of the target and the following.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn decode<const BITS: usize>(
    layout: &Layout,
    group: usize,
    wire: &[u8],
    target: &mut Target<'_>,
    start: usize,
) {
    let shared = from_bf16(u16::from_le_bytes([wire[2 * group], wire[2 * group + 1]]));
    let fractions = &wire[layout.fractions_start() + group * SUPER_GROUP..][..SUPER_GROUP];
    let payload = &wire[layout.payload_start() + group * SUPER_GROUP * 4 * BITS..];
    let payload = &payload[..SUPER_GROUP * 4 * BITS];
    let mut blocks = payload.chunks_exact(4 * BITS).zip(fractions);
    deliver(target, start, SUPER_GROUP, |_| {
        let (payload, &stored) = blocks.next().expect("a fraction and a payload for each block");
        let fraction = if BITS == 4 { f32::from(stored as i8) } else { f32::from(stored) };
        let step = if stored == marker::<BITS>() { f32::NAN } else { fraction * shared };
        let codes = unpack::<BITS>(payload);
        unsmooth32(if BITS == 4 {
            grid_values(codes, step)
        } else {
            integer_values(codes, LIMIT, step)
        })
    });
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
pub(crate) fn largest_of_all(vector: __m256i) -> u32 {
    let four = _mm_max_epi32(_mm256_castsi256_si128(vector), _mm256_extracti128_si256::<1>(vector));
    let two = _mm_max_epi32(four, _mm_shuffle_epi32::<0b01_00_11_10>(four));
    _mm_cvtsi128_si32(_mm_max_epi32(two, _mm_shuffle_epi32::<0b10_11_00_01>(two))) as u32
}

/// The bytes of the fractions of eight blocks.
#[inline]
#[target_feature(enable = "avx2")]
fn stored<const BITS: usize>(fractions: __m256, is_finite: __m256i) -> u64 {
    // The low bytes of the words are right whether fractions are signed or not.
    let marker = _mm256_set1_epi32(i32::from(marker::<BITS>()));
    let integers = _mm256_blendv_epi8(marker, _mm256_cvtps_epi32(fractions), is_finite);
    let integers = _mm256_and_si256(integers, _mm256_set1_epi32(0xff));
    let (low, high) = (_mm256_castsi256_si128(integers), _mm256_extracti128_si256::<1>(integers));
    let words = _mm_packs_epi32(low, high);
    _mm_cvtsi128_si64(_mm_packus_epi16(words, words)) as u64
}
