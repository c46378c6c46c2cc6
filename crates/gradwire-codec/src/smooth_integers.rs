//! The default 6-bit codec (integers, blocks of 128, smoothing) once more for AVX2. A block's four
//! rows of 32 codes are packed side by side: each plane takes one shift and mask of each row.

use std::arch::x86_64::*;

use crate::format::{Format, Rounding, Scale};
use crate::layout::Layout;
use crate::quantize::avx2::{integer_codes, integer_values, round_in_turns};
use crate::scale::{BF16_NAN, INFINITE, from_bf16, step_bits};
use crate::smooth_groups::{eights, largest_of_all};
use crate::smoothing::avx2::{SMOOTHED_PLACES, UNSMOOTHED_ORDER, load, smooth128, unsmooth128};
use crate::target::{Target, avx2::deliver};

const BLOCK: usize = 128;
const PAYLOAD: usize = BLOCK * 6 / 8;
const LIMIT: i8 = 31;

/// A smoothed block in the order of [`smooth128`], such that no vector lies across two cache lines.
#[repr(align(64))]
struct Smoothed([[f32; 32]; 4]);

/// Whether this is the codec for such values, and they are a whole block.
#[inline(always)]
pub(crate) fn applies(layout: &Layout, count: usize) -> bool {
    let codec = layout.codec;
    codec.format == Format::Int { bits: 6 }
        && codec.smoothing
        && codec.scale == Scale::PerBlock
        && codec.rounding == Rounding::Nearest
        && layout.block == BLOCK
        && count == BLOCK
}

/// Encodes a block.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn encode(layout: &Layout, block: usize, values: &[f32], wire: &mut [u8]) {
    let values = values.first_chunk::<BLOCK>().expect("a whole block");
    let mut smoothed = Smoothed([[0.0; 32]; 4]);
    smooth128(values, &mut smoothed.0);
    let magnitude = magnitude(&smoothed.0);
    let finite = magnitude < INFINITE;
    let stored =
        if finite { step_bits(f32::from_bits(magnitude), f32::from(LIMIT)) } else { BF16_NAN };
    wire[2 * block..2 * block + 2].copy_from_slice(&stored.to_le_bytes());
    let payload = layout.payload_start() + block * PAYLOAD;
    let payload = &mut wire[payload..payload + PAYLOAD];
    if !finite {
        payload.fill(0);
        return;
    }
    let inverse = 1.0 / from_bf16(stored);
    let [a, b, c, d] =
        smoothed.0.each_ref().map(|row| integer_codes(round_in_turns(row, inverse), LIMIT));
    let [low, high] = [_mm256_set1_epi8(0x0f), _mm256_set1_epi8(0x30)];
    let nibbles = |first, second| {
        let second = _mm256_slli_epi16::<4>(_mm256_and_si256(second, low));
        _mm256_or_si256(_mm256_and_si256(first, low), second)
    };
    let rest_of_a = _mm256_srli_epi16::<4>(_mm256_and_si256(a, high));
    let rest_of_b = _mm256_srli_epi16::<2>(_mm256_and_si256(b, high));
    let rest_of_d = _mm256_slli_epi16::<2>(_mm256_and_si256(d, high));
    let rest = _mm256_or_si256(
        _mm256_or_si256(rest_of_a, rest_of_b),
        _mm256_or_si256(_mm256_and_si256(c, high), rest_of_d),
    );
    for (place, plane) in
        payload.as_chunks_mut::<32>().0.iter_mut().zip([nibbles(a, c), nibbles(b, d), rest])
    {
        // SAFETY: 32 bytes, of any alignment.
        unsafe { _mm256_storeu_si256(place.as_mut_ptr().cast(), in_order(plane)) };
    }
}

/// Decodes a block to where its values go: element `start` of the target and the following.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn decode(
    layout: &Layout,
    block: usize,
    wire: &[u8],
    target: &mut Target<'_>,
    start: usize,
) {
    let step = from_bf16(u16::from_le_bytes([wire[2 * block], wire[2 * block + 1]]));
    let payload = layout.payload_start() + block * PAYLOAD;
    let payload = wire[payload..payload + PAYLOAD].as_chunks::<32>().0;
    let order = _mm256_broadcastsi128_si256(eights(UNSMOOTHED_ORDER));
    let plane = |index: usize| {
        // SAFETY: 32 bytes, of any alignment.
        let plane = unsafe { _mm256_loadu_si256(payload[index].as_ptr().cast()) };
        _mm256_shuffle_epi8(plane, order)
    };
    let (first, second, rest) = (plane(0), plane(1), plane(2));
    let [low, high] = [_mm256_set1_epi8(0x0f), _mm256_set1_epi8(0x30)];
    let codes = |nibbles, rest| {
        _mm256_or_si256(_mm256_and_si256(nibbles, low), _mm256_and_si256(rest, high))
    };
    let rows = [
        codes(first, _mm256_slli_epi16::<4>(rest)),
        codes(second, _mm256_slli_epi16::<2>(rest)),
        codes(_mm256_srli_epi16::<4>(first), rest),
        codes(_mm256_srli_epi16::<4>(second), _mm256_srli_epi16::<2>(rest)),
    ];
    let rows = unsmooth128(rows.map(|codes| integer_values(codes, LIMIT, step)));
    deliver(target, start, 4, |row| rows[row]);
}

/// Bits of the largest magnitude of a block.
#[inline]
#[target_feature(enable = "avx2")]
fn magnitude(rows: &[[f32; 32]; 4]) -> u32 {
    let mask = _mm256_set1_epi32(0x7fff_ffff);
    let mut largest = _mm256_setzero_si256();
    for row in rows {
        let (a, b, c, d) = load(row);
        for vector in [a, b, c, d] {
            let magnitudes = _mm256_and_si256(_mm256_castps_si256(vector), mask);
            largest = _mm256_max_epi32(largest, magnitudes);
        }
    }
    largest_of_all(largest)
}

/// Undoes the order of smoothing and rounding.
#[inline]
#[target_feature(enable = "avx2")]
fn in_order(plane: __m256i) -> __m256i {
    let eights_in_order = _mm256_permute4x64_epi64::<0b11_01_10_00>(plane);
    _mm256_shuffle_epi8(eights_in_order, _mm256_broadcastsi128_si256(eights(SMOOTHED_PLACES)))
}
