//! The default 4-bit codec (grid, blocks of 32, super-groups, smoothing) once more for AVX2, whole
//! super-groups at a time: a block stays in four registers from smoothing to its extent, and from
//! its codes to the decoded values.

use std::arch::x86_64::*;

use crate::format::{Format, Scale};
use crate::layout::{Layout, SUPER_GROUP};
use crate::quantize::avx2::{grid_codes, grid_values};
use crate::scale::{INFINITE, from_bf16, step_bits};
use crate::smoothing::avx2::{smooth32, store, unsmooth32};

/// Elements of a super-group.
const GROUP: usize = 32 * SUPER_GROUP;
const PAYLOAD: usize = GROUP / 2;
const NOT_FINITE: u8 = 0x80;

/// Smoothed blocks, such that no vector lies across two cache lines.
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
    let (mut magnitudes, mut positive) = ([0; SUPER_GROUP], [false; SUPER_GROUP]);
    for (index, block) in values.as_chunks::<32>().0.iter().take(SUPER_GROUP).enumerate() {
        let vectors = smooth32(block);
        store(vectors, &mut smoothed.0[index]);
        (magnitudes[index], positive[index]) = extent(vectors);
    }
    let finite = magnitudes.map(|magnitude| if magnitude < INFINITE { magnitude } else { 0 });
    let shared = step_bits(f32::from_bits(finite.into_iter().fold(0, u32::max)), 127.0 * 127.0);
    wire[2 * group..2 * group + 2].copy_from_slice(&shared.to_le_bytes());
    let shared = from_bf16(shared);
    let inverse = 1.0 / (shared * 127.0);
    let fractions: &mut [u8] = &mut wire[layout.fractions_start() + group * SUPER_GROUP..];
    let mut inverses = [0.0; SUPER_GROUP];
    for index in 0..SUPER_GROUP {
        let exact = f32::from_bits(finite[index]) * inverse;
        let fraction = exact.ceil().clamp(1.0, 127.0);
        let signed = if positive[index] { -fraction } else { fraction };
        let is_finite = magnitudes[index] < INFINITE;
        fractions[index] = if is_finite { signed as i32 as u8 } else { NOT_FINITE };
        inverses[index] = 1.0 / (signed * shared);
    }
    let payload = layout.payload_start() + group * PAYLOAD;
    let payload = wire[payload..payload + PAYLOAD].as_chunks_mut::<16>().0;
    for (index, payload) in payload.iter_mut().enumerate() {
        if magnitudes[index] >= INFINITE {
            payload.fill(0);
            continue;
        }
        let codes = grid_codes(&smoothed.0[index], inverses[index]);
        let high = _mm_slli_epi16::<4>(_mm256_extracti128_si256::<1>(codes));
        let packed = _mm_or_si128(_mm256_castsi256_si128(codes), high);
        // SAFETY: 16 bytes, of any alignment.
        unsafe { _mm_storeu_si128(payload.as_mut_ptr().cast(), packed) };
    }
}

/// Decodes a group.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn decode(layout: &Layout, group: usize, wire: &[u8], values: &mut [f32]) {
    let shared = from_bf16(u16::from_le_bytes([wire[2 * group], wire[2 * group + 1]]));
    let fractions = &wire[layout.fractions_start() + group * SUPER_GROUP..][..SUPER_GROUP];
    let payload = layout.payload_start() + group * PAYLOAD;
    let payload = wire[payload..payload + PAYLOAD].as_chunks::<16>().0;
    let blocks = values.as_chunks_mut::<32>().0.iter_mut();
    for ((block, &fraction), payload) in blocks.zip(fractions).zip(payload) {
        let step =
            if fraction == NOT_FINITE { f32::NAN } else { f32::from(fraction as i8) * shared };
        // SAFETY: 16 bytes, of any alignment.
        let packed = unsafe { _mm_loadu_si128(payload.as_ptr().cast()) };
        let both = _mm256_set_m128i(_mm_srli_epi16::<4>(packed), packed);
        let codes = _mm256_and_si256(both, _mm256_set1_epi8(15));
        unsmooth32(grid_values(codes, step), block);
    }
}

/// Bits of the largest magnitude of a block, and whether a positive value has it.
#[inline]
#[target_feature(enable = "avx2")]
fn extent((a, b, c, d): (__m256, __m256, __m256, __m256)) -> (u32, bool) {
    let mask = _mm256_set1_epi32(0x7fff_ffff);
    let (a, b) = (_mm256_castps_si256(a), _mm256_castps_si256(b));
    let (c, d) = (_mm256_castps_si256(c), _mm256_castps_si256(d));
    let signed = _mm256_max_epi32(_mm256_max_epi32(a, b), _mm256_max_epi32(c, d));
    let ab = _mm256_max_epi32(_mm256_and_si256(a, mask), _mm256_and_si256(b, mask));
    let cd = _mm256_max_epi32(_mm256_and_si256(c, mask), _mm256_and_si256(d, mask));
    let eight = _mm256_max_epi32(ab, cd);
    let swapped = _mm256_permute2x128_si256::<1>(eight, eight);
    let eight = _mm256_max_epi32(eight, swapped);
    let eight = _mm256_max_epi32(eight, _mm256_shuffle_epi32::<0b01_00_11_10>(eight));
    let eight = _mm256_max_epi32(eight, _mm256_shuffle_epi32::<0b10_11_00_01>(eight));
    let positive = _mm256_movemask_epi8(_mm256_cmpeq_epi32(signed, eight)) != 0;
    (_mm256_cvtsi256_si32(eight) as u32, positive)
}
