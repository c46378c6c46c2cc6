//! The 16-bit floats, value by value.

use crate::format::Codec;
use crate::instructions::multiversion;
use crate::target::{Target, combine};

multiversion! {
    /// Encodes values.
    encode(codec: Codec, values: &[f32], wire: &mut [u8]) = encode_with
}
multiversion! {
    /// Decodes values to where they go.
    decode(codec: Codec, wire: &[u8], target: Target<'_>) = decode_with
}
multiversion! {
    /// Writes values − decoded to `error`.
    subtract(codec: Codec, values: &[f32], wire: &[u8], error: &mut [f32]) = subtract_with
}

/// Values that are converted at once.
const CHUNK: usize = 256;

#[inline(always)]
fn encode_with<const AVX2: bool>(codec: Codec, values: &[f32], wire: &mut [u8]) {
    for (values, wire) in values.chunks(CHUNK).zip(wire.chunks_mut(2 * CHUNK)) {
        to_wire::<AVX2>(codec, values, wire);
    }
}

#[inline(always)]
fn decode_with<const AVX2: bool>(codec: Codec, wire: &[u8], mut target: Target<'_>) {
    let mut decoded = [0.0; CHUNK];
    for (index, wire) in wire.chunks(2 * CHUNK).enumerate() {
        let decoded = &mut decoded[..wire.len() / 2];
        from_wire::<AVX2>(codec, wire, decoded);
        combine(&mut target, index * CHUNK, decoded);
    }
}

#[inline(always)]
fn subtract_with<const AVX2: bool>(codec: Codec, values: &[f32], wire: &[u8], error: &mut [f32]) {
    let mut decoded = [0.0; CHUNK];
    let chunks = values.chunks(CHUNK).zip(wire.chunks(2 * CHUNK)).zip(error.chunks_mut(CHUNK));
    for ((values, wire), error) in chunks {
        let decoded = &mut decoded[..values.len()];
        from_wire::<AVX2>(codec, wire, decoded);
        for ((error, value), decoded) in error.iter_mut().zip(values).zip(decoded) {
            *error = value - *decoded;
        }
    }
}

#[inline(always)]
fn to_wire<const AVX2: bool>(codec: Codec, values: &[f32], wire: &mut [u8]) {
    let half = codec == Codec::F16;
    let (mut values, mut wire) = (values, wire.as_chunks_mut::<2>().0);
    #[cfg(target_arch = "x86_64")]
    if AVX2 && half {
        let whole = values.len() / 8 * 8;
        // SAFETY: AVX2 is set only in functions compiled for it and F16C.
        unsafe { f16c::to_wire(&values[..whole], &mut wire[..whole]) };
        (values, wire) = (&values[whole..], &mut wire[whole..]);
    }
    for (value, stored) in values.iter().zip(wire) {
        *stored = if half { to_f16(*value) } else { to_bf16(*value) }.to_le_bytes();
    }
}

#[inline(always)]
fn from_wire<const AVX2: bool>(codec: Codec, wire: &[u8], values: &mut [f32]) {
    let half = codec == Codec::F16;
    let (mut values, mut wire) = (values, wire.as_chunks::<2>().0);
    #[cfg(target_arch = "x86_64")]
    if AVX2 && half {
        let whole = values.len() / 8 * 8;
        // SAFETY: AVX2 is set only in functions compiled for it and F16C.
        unsafe { f16c::from_wire(&wire[..whole], &mut values[..whole]) };
        (values, wire) = (&mut values[whole..], &wire[whole..]);
    }
    for (value, stored) in values.iter_mut().zip(wire) {
        let stored = u16::from_le_bytes(*stored);
        *value = if half { from_f16(stored) } else { f32::from_bits(u32::from(stored) << 16) };
    }
}

#[inline(always)]
pub(crate) fn to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
    // A NaN keeps its upper bits and becomes quiet.
    let kept = if value.is_nan() { bits | 0x40_0000 } else { rounded };
    (kept >> 16) as u16
}

#[inline(always)]
fn to_f16(value: f32) -> u16 {
    let bits = value.to_bits() & 0x7fff_ffff;
    let normal = ((bits + 0xfff + (bits >> 13 & 1)) >> 13).wrapping_sub(112 << 10);
    // Adding ½ leaves multiples of 2⁻²⁴ in the low bits.
    let subnormal = (f32::from_bits(bits) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
    let magnitude = if bits > 0x7f80_0000 {
        0x7e00 | (bits >> 13 & 0x3ff)
    } else if bits >= 143 << 23 {
        0x7c00
    } else if bits >= 113 << 23 {
        normal
    } else {
        subnormal
    };
    (magnitude | value.to_bits() >> 16 & 0x8000) as u16
}

#[inline(always)]
fn from_f16(stored: u16) -> f32 {
    let magnitude = u32::from(stored & 0x7fff);
    let bits = if magnitude > 0x7c00 {
        0x7fc0_0000 | magnitude << 13
    } else if magnitude == 0x7c00 {
        0x7f80_0000
    } else if magnitude >= 0x400 {
        (magnitude << 13) + (112 << 23)
    } else {
        (magnitude as i32 as f32 * f32::from_bits(103 << 23)).to_bits()
    };
    f32::from_bits(bits | u32::from(stored & 0x8000) << 16)
}

#[cfg(target_arch = "x86_64")]
mod f16c {
    use std::arch::x86_64::*;

    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    pub(super) fn to_wire(values: &[f32], wire: &mut [[u8; 2]]) {
        for (values, wire) in values.as_chunks::<8>().0.iter().zip(wire.as_chunks_mut::<8>().0) {
            // SAFETY: eight elements are read and 16 bytes written, of any alignment.
            unsafe {
                let eight = _mm256_loadu_ps(values.as_ptr());
                let halves = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(eight);
                _mm_storeu_si128(wire.as_mut_ptr().cast(), halves);
            }
        }
    }

    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    pub(super) fn from_wire(wire: &[[u8; 2]], values: &mut [f32]) {
        for (wire, values) in wire.as_chunks::<8>().0.iter().zip(values.as_chunks_mut::<8>().0) {
            // SAFETY: 16 bytes are read and eight elements written, of any alignment.
            unsafe {
                let halves = _mm_loadu_si128(wire.as_ptr().cast());
                _mm256_storeu_ps(values.as_mut_ptr(), _mm256_cvtph_ps(halves));
            }
        }
    }
}
