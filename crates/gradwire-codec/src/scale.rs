//! Scales of blocks: measured, rounded so that nothing overflows, written and read.

use crate::format::{Format, Rounding, Scale};
use crate::layout::{Layout, SUPER_GROUP};

/// The least step. A block of subnormal values would otherwise have a step of 0, or one whose
/// reciprocal is infinite, and decode to NaN.
pub(crate) const STEP_FLOOR: f32 = 1e-30;
/// The bf16 that marks a block with a NaN or an infinity: all of it decodes to NaN.
pub(crate) const BF16_NAN: u16 = 0x7fc0;
const BF16_MAX: u16 = 0x7f7f;
/// Bits of the least magnitude that is not finite.
pub(crate) const INFINITE: u32 = 0x7f80_0000;

/// How one block was scaled: `value ≈ low + code · step`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BlockScale {
    /// Value of one unit of the format; for min-max half a step; NaN if the block is not finite.
    pub(crate) step: f32,
    /// The least value (min-max), else 0.
    pub(crate) low: f32,
}

/// What the scale of a block is made from.
#[derive(Clone, Copy, Debug, Default)]
struct Extent {
    /// Bits of the largest magnitude, or of a NaN.
    magnitude: u32,
    /// Whether the value of largest magnitude is positive.
    positive: bool,
    low: f32,
    high: f32,
    mean: f32,
}

/// In which unit of the format the largest magnitude of a block is expressed.
#[inline(always)]
pub(crate) fn unit(format: Format) -> f32 {
    match format {
        Format::Int { bits } => ((1u32 << (bits - 1)) - 1) as f32,
        Format::IntMinMax { bits } => ((1u32 << bits) - 1) as f32,
        Format::Grid4 => 127.0,
        Format::Fp8E4M3 => 448.0,
        Format::Fp8E5M2 => 57344.0,
        Format::Grid2 | Format::Sign => 1.0,
    }
}

/// The largest multiple of a super-group's scale. Signed for the grid, whose −128 marks a block
/// that is not finite, as 255 does elsewhere.
#[inline(always)]
fn fractions(format: Format) -> f32 {
    if format == Format::Grid4 { 127.0 } else { 254.0 }
}

/// Measures the blocks of a group (whose last may be short), writes their scales and returns them
/// as a decoder reads them. `counted` is the number of values, without the padding.
#[inline(always)]
pub(crate) fn write<const AVX2: bool>(
    layout: &Layout,
    group: usize,
    work: &[f32],
    counted: usize,
    wire: &mut [u8],
) -> [BlockScale; SUPER_GROUP] {
    match layout.codec.scale {
        Scale::PerBlock => write_block::<AVX2>(layout, group, work, counted, wire),
        Scale::SuperGroup => write_super_group::<AVX2>(layout, group, work, wire),
    }
    read(layout, group, wire)
}

/// The scales of a group.
#[inline(always)]
pub(crate) fn read(layout: &Layout, group: usize, wire: &[u8]) -> [BlockScale; SUPER_GROUP] {
    let mut scales = [BlockScale::default(); SUPER_GROUP];
    let at = group * layout.group_scale_bytes();
    let shared = from_bf16(u16::from_le_bytes([wire[at], wire[at + 1]]));
    if layout.codec.scale == Scale::PerBlock {
        scales[0].step = shared;
        if let Format::IntMinMax { .. } = layout.codec.format {
            let low = [wire[at + 2], wire[at + 3], wire[at + 4], wire[at + 5]];
            scales[0].low = f32::from_le_bytes(low);
        }
        return scales;
    }
    let first = group * SUPER_GROUP;
    let stored = &wire[layout.fractions_start()..][first..layout.blocks.min(first + SUPER_GROUP)];
    let signed = layout.codec.format == Format::Grid4;
    for (scale, &stored) in scales.iter_mut().zip(stored) {
        let fraction = if signed { f32::from(stored as i8) } else { f32::from(stored) };
        let finite = stored != if signed { 0x80 } else { 0xff };
        scale.step = if finite { fraction * shared } else { f32::NAN };
    }
    scales
}

#[inline(always)]
fn write_block<const AVX2: bool>(
    layout: &Layout,
    group: usize,
    work: &[f32],
    counted: usize,
    wire: &mut [u8],
) {
    let format = layout.codec.format;
    let extent = measure::<AVX2>(format, work, counted);
    let stored = match format {
        _ if extent.magnitude >= INFINITE => BF16_NAN,
        Format::Grid2 | Format::Sign => bf16_nearest(extent.mean),
        // Halved first: the range of finite values may exceed the largest of them.
        Format::IntMinMax { .. } => {
            round_up((extent.high * 0.5 - extent.low * 0.5) / unit(format)) as u16
        }
        _ => step_bits(f32::from_bits(extent.magnitude), unit(format)),
    };
    let negative = format == Format::Grid4 && extent.positive && stored != BF16_NAN;
    let at = group * layout.group_scale_bytes();
    let stored = stored | u16::from(negative) << 15;
    wire[at..at + 2].copy_from_slice(&stored.to_le_bytes());
    if let Format::IntMinMax { .. } = format {
        let low = if stored == BF16_NAN { 0.0 } else { extent.low };
        wire[at + 2..at + 6].copy_from_slice(&low.to_le_bytes());
    }
}

#[inline(always)]
fn write_super_group<const AVX2: bool>(
    layout: &Layout,
    group: usize,
    work: &[f32],
    wire: &mut [u8],
) {
    let format = layout.codec.format;
    let mut extents = [Extent::default(); SUPER_GROUP];
    let mut largest = 0;
    for (extent, block) in extents.iter_mut().zip(work.chunks(layout.block)) {
        *extent = measure::<AVX2>(format, block, block.len());
        largest = largest.max(if extent.magnitude < INFINITE { extent.magnitude } else { 0 });
    }
    let most = fractions(format);
    let shared = step_bits(f32::from_bits(largest), unit(format) * most);
    let at = group * layout.group_scale_bytes();
    wire[at..at + 2].copy_from_slice(&shared.to_le_bytes());
    let inverse = 1.0 / (from_bf16(shared) * unit(format));
    let first = group * SUPER_GROUP;
    let end = layout.blocks.min(first + SUPER_GROUP);
    let stored = &mut wire[layout.fractions_start()..][first..end];
    for (stored, extent) in stored.iter_mut().zip(&extents) {
        let exact = f32::from_bits(extent.magnitude) * inverse;
        // Rounded up, so that no value lies beyond the last level.
        let fraction = exact.ceil().clamp(1.0, most) as i32;
        let signed = if format == Format::Grid4 && extent.positive { -fraction } else { fraction };
        let marker = if format == Format::Grid4 { 0x80 } else { 0xff };
        *stored = if extent.magnitude < INFINITE { signed as u8 } else { marker };
    }
}

/// The bf16 of a step that brings `magnitude` to `unit`: rounded up, but such that
/// `unit` steps stay finite.
#[inline(always)]
pub(crate) fn step_bits(magnitude: f32, unit: f32) -> u16 {
    let largest = (f32::MAX / unit).to_bits() >> 16;
    round_up(magnitude / unit).min(largest) as u16
}

/// The least bf16 that is not below a step or the least step.
#[inline(always)]
fn round_up(step: f32) -> u32 {
    step.max(STEP_FLOOR).to_bits().div_ceil(1 << 16)
}

/// The nearest bf16, ties to even, of a value that is neither negative nor NaN; the largest finite
/// one at most.
#[inline(always)]
fn bf16_nearest(value: f32) -> u16 {
    let bits = value.to_bits();
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16).min(u32::from(BF16_MAX)) as u16
}

#[inline(always)]
pub(crate) fn from_bf16(stored: u16) -> f32 {
    f32::from_bits(u32::from(stored) << 16)
}

#[inline(always)]
fn measure<const AVX2: bool>(format: Format, block: &[f32], counted: usize) -> Extent {
    let magnitude = largest_masked::<AVX2>(block, 0x7fff_ffff) as u32;
    let mut extent = Extent { magnitude, ..Extent::default() };
    match format {
        // As integers, positive floats are ordered and negative ones lie below them.
        Format::Grid4 => {
            extent.positive = largest_masked::<AVX2>(block, u32::MAX) as u32 == magnitude;
        }
        Format::IntMinMax { .. } => {
            let values = &block[..counted];
            extent.high = from_order(largest(values, order));
            extent.low = from_order(!largest(values, |bits| !order(bits)));
        }
        Format::Grid2 | Format::Sign => extent.mean = mean_magnitude(block, counted),
        _ => {}
    }
    extent
}

/// The largest of the bits of the values, as signed integers, under a mask.
#[inline(always)]
fn largest_masked<const AVX2: bool>(block: &[f32], mask: u32) -> i32 {
    #[cfg(target_arch = "x86_64")]
    if AVX2 {
        // SAFETY: AVX2 is set only in functions compiled for it.
        return unsafe { avx2::largest_masked(block, mask) };
    }
    largest(block, |bits| (bits & mask) as i32)
}

/// The largest of a function of the bits of the values.
#[inline(always)]
fn largest(block: &[f32], of: impl Fn(u32) -> i32) -> i32 {
    let (chunks, rest) = block.as_chunks::<32>();
    let mut lanes = [i32::MIN; 32];
    for chunk in chunks {
        for (lane, value) in lanes.iter_mut().zip(chunk) {
            *lane = (*lane).max(of(value.to_bits()));
        }
    }
    let last = rest.iter().map(|value| of(value.to_bits())).max().unwrap_or(i32::MIN);
    let mut eight = [i32::MIN; 8];
    for lanes in lanes.as_chunks::<8>().0 {
        for (most, lane) in eight.iter_mut().zip(lanes) {
            *most = (*most).max(*lane);
        }
    }
    eight.into_iter().fold(last, i32::max)
}

/// Maps the bits of floats to integers of the same order.
#[inline(always)]
fn order(bits: u32) -> i32 {
    let bits = bits as i32;
    bits ^ (bits >> 31 & 0x7fff_ffff)
}

#[inline(always)]
fn from_order(order: i32) -> f32 {
    f32::from_bits((order ^ (order >> 31 & 0x7fff_ffff)) as u32)
}

/// The mean magnitude. The sum has 32 partial sums, added pairwise, and terms divided beforehand:
/// the same bits on every processor, and no overflow.
#[inline(always)]
fn mean_magnitude(block: &[f32], counted: usize) -> f32 {
    let factor = 1.0 / counted as f32;
    let mut lanes = [0.0f32; 32];
    for chunk in block.as_chunks::<32>().0 {
        for (lane, value) in lanes.iter_mut().zip(chunk) {
            *lane += value.abs() * factor;
        }
    }
    for half in [16, 8, 4, 2, 1] {
        let (low, high) = lanes.split_at_mut(half);
        for (low, high) in low.iter_mut().zip(high) {
            *low += *high;
        }
    }
    lanes[0]
}

/// Whether stochastic rounding is asked for.
#[inline(always)]
pub(crate) fn is_stochastic(layout: &Layout) -> bool {
    layout.codec.rounding == Rounding::Stochastic
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::*;

    /// Of a block of whole chunks of 32.
    #[inline]
    #[target_feature(enable = "avx2")]
    pub(super) fn largest_masked(block: &[f32], mask: u32) -> i32 {
        let (mask, least) = (_mm256_set1_epi32(mask as i32), _mm256_set1_epi32(i32::MIN));
        let (mut a, mut b, mut c, mut d) = (least, least, least, least);
        for chunk in block.as_chunks::<32>().0 {
            // SAFETY: the offsets below leave eight of the 32 elements each.
            let load = |offset| unsafe { _mm256_loadu_si256(chunk.as_ptr().add(offset).cast()) };
            a = _mm256_max_epi32(a, _mm256_and_si256(load(0), mask));
            b = _mm256_max_epi32(b, _mm256_and_si256(load(8), mask));
            c = _mm256_max_epi32(c, _mm256_and_si256(load(16), mask));
            d = _mm256_max_epi32(d, _mm256_and_si256(load(24), mask));
        }
        let eight = _mm256_max_epi32(_mm256_max_epi32(a, b), _mm256_max_epi32(c, d));
        let high = _mm256_extracti128_si256::<1>(eight);
        let four = _mm_max_epi32(_mm256_castsi256_si128(eight), high);
        let two = _mm_max_epi32(four, _mm_shuffle_epi32::<0b01_00_11_10>(four));
        _mm_cvtsi128_si32(_mm_max_epi32(two, _mm_shuffle_epi32::<0b10_11_00_01>(two)))
    }
}
