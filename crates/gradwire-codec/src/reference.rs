//! The codecs once more, value by value and without regard to speed: what the fast kernels are
//! tested against bit for bit and measured against.
//!
//! It shares no code with them but the definition of a codec ([`Codec`], its size on the wire and
//! its place in it), the levels of the 4-bit grid, and the hash behind stochastic rounding and the
//! signs of the Hadamard transform.

use crate::format::{BlockCodec, Codec, Format, Rounding, Scale};
use crate::grid::{BETWEEN, LEVELS, MAGNITUDES};
use crate::layout::{Layout, PADDING, SUPER_GROUP};
use crate::random::{Key, sign_bit};

/// What [`Codec::encode`] writes.
///
/// # Panics
///
/// If the codec is a combination that [`BlockCodec::check`] denies.
pub fn encode(codec: Codec, values: &[f32], seed: u64) -> Vec<u8> {
    match codec {
        Codec::Bf16 => values.iter().flat_map(|value| bf16(*value).to_le_bytes()).collect(),
        Codec::F16 => values.iter().flat_map(|value| f16(*value).to_le_bytes()).collect(),
        Codec::Block(block) => encode_blocks(block, values, seed),
    }
}

/// What [`Codec::decode`] writes.
///
/// # Panics
///
/// If `wire` is too short for so many elements, or the codec is a combination that
/// [`BlockCodec::check`] denies.
pub fn decode(codec: Codec, wire: &[u8], elements: usize) -> Vec<f32> {
    let half = |index: usize| u16::from_le_bytes([wire[2 * index], wire[2 * index + 1]]);
    match codec {
        Codec::Bf16 => (0..elements).map(|index| from_bf16(half(index))).collect(),
        Codec::F16 => (0..elements).map(|index| from_f16(half(index))).collect(),
        Codec::Block(block) => decode_blocks(block, wire, elements),
    }
}

/// What [`Codec::decode_add`] leaves in `target`.
///
/// # Panics
///
/// As [`decode`], and if `local` is too short.
pub fn decode_add(
    codec: Codec,
    wire: &[u8],
    local: Option<&[f32]>,
    target: &mut [f32],
    finish: Option<u32>,
) {
    for (index, decoded) in decode(codec, wire, target.len()).into_iter().enumerate() {
        let mut sum = local.map_or(target[index], |local| local[index]) + decoded;
        if let Some(ranks) = finish {
            sum /= ranks as f32;
        }
        target[index] = sum;
    }
}

/// One block: its values, padded and smoothed, and how many count.
struct Block {
    values: Vec<f32>,
    counted: usize,
}

/// The value of one unit of the format, and the least value where the format has one.
#[derive(Clone, Copy)]
struct Step {
    step: f32,
    low: f32,
}

fn encode_blocks(codec: BlockCodec, values: &[f32], seed: u64) -> Vec<u8> {
    let layout = Layout::new(codec, values.len());
    let mut wire = vec![0; layout.total_bytes()];
    let blocks: Vec<Block> = values.chunks(layout.block).map(|v| prepare(codec, v)).collect();
    match codec.scale {
        Scale::PerBlock => {
            for (index, block) in blocks.iter().enumerate() {
                write_scale(codec.format, block, index, &mut wire);
            }
        }
        Scale::SuperGroup => {
            for (group, blocks) in blocks.chunks(SUPER_GROUP).enumerate() {
                write_super_group(&layout, blocks, group, &mut wire);
            }
        }
    }
    for (index, block) in blocks.iter().enumerate() {
        let step = read_step(&layout, &wire, index);
        let codes: Vec<u8> = block
            .values
            .iter()
            .enumerate()
            .map(|(offset, value)| {
                let random = (codec.rounding == Rounding::Stochastic)
                    .then(|| (Key::new(seed), (index * layout.block + offset) as u32));
                if step.step.is_nan() { 0 } else { code_of(codec.format, *value, step, random) }
            })
            .collect();
        let payload = &mut wire[layout.payload(index, codes.len())];
        pack(codec.format.bits(), &codes, payload);
    }
    wire
}

fn decode_blocks(codec: BlockCodec, wire: &[u8], elements: usize) -> Vec<f32> {
    let layout = Layout::new(codec, elements);
    let mut values = Vec::new();
    for index in 0..layout.blocks {
        let count = layout.block.min(elements - index * layout.block);
        let padded = count.next_multiple_of(PADDING);
        let step = read_step(&layout, wire, index);
        let codes = unpack(codec.format.bits(), &wire[layout.payload(index, padded)], padded);
        let mut block: Vec<f32> =
            codes.into_iter().map(|code| value_of(codec.format, code, step)).collect();
        if codec.smoothing {
            for piece in pieces(&mut block, layout.block) {
                hadamard(piece);
                flip_signs(piece);
            }
        }
        values.extend(&block[..count]);
    }
    values
}

fn prepare(codec: BlockCodec, values: &[f32]) -> Block {
    let padded = values.len().next_multiple_of(PADDING);
    let mut block = values.to_vec();
    block.resize(padded, 0.0);
    if !codec.smoothing {
        return Block { values: block, counted: values.len() };
    }
    for piece in pieces(&mut block, usize::from(codec.block)) {
        flip_signs(piece);
        let length = piece.len() as f32;
        piece.iter_mut().for_each(|value| *value /= length);
        hadamard(piece);
    }
    Block { values: block, counted: padded }
}

/// What is transformed at once: a whole block, or 32 elements of a short one.
fn pieces(block: &mut [f32], full: usize) -> std::slice::ChunksMut<'_, f32> {
    let length = if block.len() == full { full } else { 32 };
    block.chunks_mut(length)
}

fn flip_signs(piece: &mut [f32]) {
    for (index, value) in piece.iter_mut().enumerate() {
        if sign_bit(index) != 0 {
            *value = -*value;
        }
    }
}

/// H(2n) = [[H(n), H(n)], [H(n), −H(n)]], by way of sums and differences of the halves.
fn hadamard(values: &mut [f32]) {
    let half = values.len() / 2;
    if half == 0 {
        return;
    }
    for index in 0..half {
        let (low, high) = (values[index], values[index + half]);
        values[index] = low + high;
        values[index + half] = low - high;
    }
    hadamard(&mut values[..half]);
    hadamard(&mut values[half..]);
}

/// How many units of the format the largest magnitude becomes.
fn units(format: Format) -> f32 {
    match format {
        Format::Int { bits } => (2f32.powi(i32::from(bits) - 1)) - 1.0,
        Format::IntMinMax { bits } => 2f32.powi(i32::from(bits)) - 1.0,
        Format::Grid4 => 127.0,
        Format::Fp8E4M3 => 448.0,
        Format::Fp8E5M2 => 57344.0,
        Format::Grid2 | Format::Sign => 1.0,
    }
}

fn is_finite(block: &Block) -> bool {
    block.values.iter().all(|value| value.is_finite())
}

fn magnitude(block: &Block) -> f32 {
    block.values.iter().fold(0.0, |most, value| value.abs().max(most))
}

/// Whether a value of the largest magnitude is positive.
fn leans_positive(block: &Block) -> bool {
    block.values.iter().any(|value| value.is_sign_positive() && *value == magnitude(block))
}

/// The least bf16 that is not below the step.
fn step_above(magnitude: f32, units: f32) -> f32 {
    let step = (magnitude / units).max(1e-30);
    let below = f32::from_bits(step.to_bits() & 0xffff_0000);
    let above = f32::from_bits((step.to_bits() & 0xffff_0000) + 0x1_0000);
    if below == step { below } else { above }
}

/// The same, or the largest bf16 of which `units` are finite.
fn step_of(magnitude: f32, units: f32) -> f32 {
    let largest = f32::from_bits((f32::MAX / units).to_bits() & 0xffff_0000);
    step_above(magnitude, units).min(largest)
}

fn write_scale(format: Format, block: &Block, index: usize, wire: &mut [u8]) {
    let finite = is_finite(block);
    let counted = &block.values[..block.counted];
    let least = counted.iter().copied().min_by(f32::total_cmp).unwrap_or(0.0);
    let most = counted.iter().copied().max_by(f32::total_cmp).unwrap_or(0.0);
    let step = match format {
        _ if !finite => f32::from_bits(0x7fc0_0000),
        Format::Grid2 | Format::Sign => from_bf16(bf16(mean_magnitude(block)).min(0x7f7f)),
        Format::IntMinMax { .. } => step_above(most / 2.0 - least / 2.0, units(format)),
        Format::Grid4 if leans_positive(block) => -step_of(magnitude(block), units(format)),
        _ => step_of(magnitude(block), units(format)),
    };
    let stored = ((step.to_bits() >> 16) as u16).to_le_bytes();
    match format {
        Format::IntMinMax { .. } => {
            wire[6 * index..][..2].copy_from_slice(&stored);
            let low = if finite { least } else { 0.0 };
            wire[6 * index + 2..][..4].copy_from_slice(&low.to_le_bytes());
        }
        _ => wire[2 * index..][..2].copy_from_slice(&stored),
    }
}

/// Partial sums of every 32nd term, then sums of halves: the order is part of the definition.
fn mean_magnitude(block: &Block) -> f32 {
    let mut sums = vec![0.0; 32];
    for (index, value) in block.values.iter().enumerate() {
        sums[index % 32] += value.abs() * (1.0 / block.counted as f32);
    }
    while sums.len() > 1 {
        let high = sums.split_off(sums.len() / 2);
        sums = sums.iter().zip(high).map(|(low, high)| low + high).collect();
    }
    sums[0]
}

fn write_super_group(layout: &Layout, blocks: &[Block], group: usize, wire: &mut [u8]) {
    let format = layout.codec.format;
    let signed = format == Format::Grid4;
    let most = if signed { 127.0 } else { 254.0 };
    let finite = blocks.iter().filter(|block| is_finite(block));
    let largest = finite.map(magnitude).fold(0.0, f32::max);
    let shared = step_of(largest, units(format) * most);
    wire[2 * group..][..2].copy_from_slice(&((shared.to_bits() >> 16) as u16).to_le_bytes());
    for (index, block) in blocks.iter().enumerate() {
        let exact = magnitude(block) * (1.0 / (shared * units(format)));
        let fraction = exact.ceil().clamp(1.0, most);
        wire[layout.fractions_start() + group * SUPER_GROUP + index] = match is_finite(block) {
            false if signed => 0x80,
            false => 0xff,
            true if signed && leans_positive(block) => (-fraction as i8) as u8,
            true => fraction as u8,
        };
    }
}

fn read_step(layout: &Layout, wire: &[u8], block: usize) -> Step {
    let format = layout.codec.format;
    let stored = |at: usize| from_bf16(u16::from_le_bytes([wire[at], wire[at + 1]]));
    if let Format::IntMinMax { .. } = format {
        let low = [2, 3, 4, 5].map(|offset| wire[6 * block + offset]);
        return Step { step: stored(6 * block), low: f32::from_le_bytes(low) };
    }
    if layout.codec.scale == Scale::PerBlock {
        return Step { step: stored(2 * block), low: 0.0 };
    }
    let fraction = wire[layout.fractions_start() + block];
    let multiple = match (format, fraction) {
        (Format::Grid4, 0x80) => f32::NAN,
        (Format::Grid4, _) => f32::from(fraction as i8),
        (_, 0xff) => f32::NAN,
        _ => f32::from(fraction),
    };
    // A marker says NaN whatever the scale is.
    let step = if multiple.is_nan() { f32::NAN } else { multiple * stored(2 * (block / 8)) };
    Step { step, low: 0.0 }
}

fn code_of(format: Format, value: f32, step: Step, random: Option<(Key, u32)>) -> u8 {
    let dither = random.map_or(0.0, |(key, index)| key.dither(index));
    let exact = value * (1.0 / step.step);
    match format {
        Format::Int { bits } => {
            let rounded = (exact + dither).round_ties_even().clamp(-units(format), units(format));
            (rounded as i32 + (1 << (bits - 1))) as u8
        }
        Format::IntMinMax { .. } => {
            let exact = (value / 2.0 - step.low / 2.0) * (1.0 / step.step);
            (exact + dither).round_ties_even().clamp(0.0, units(format)) as u8
        }
        Format::Grid4 => nearest_level(exact.round_ties_even().clamp(-127.0, 127.0) as i32),
        Format::Fp8E4M3 => minifloat(exact, 3, units(format), random),
        Format::Fp8E5M2 => minifloat(exact, 2, units(format), random),
        Format::Grid2 => {
            let large = value.abs() > BETWEEN * step.step;
            u8::from(value.is_sign_negative()) + 2 * u8::from(large)
        }
        Format::Sign => u8::from(value.is_sign_negative()),
    }
}

fn value_of(format: Format, code: u8, step: Step) -> f32 {
    let integer = f32::from(code);
    match format {
        Format::Int { bits } => (integer - 2f32.powi(i32::from(bits) - 1)) * step.step,
        Format::IntMinMax { .. } => {
            let half = integer * step.step;
            (step.low + half + half).clamp(-f32::MAX, f32::MAX)
        }
        Format::Grid4 => f32::from(LEVELS[usize::from(code)]) * step.step,
        Format::Fp8E4M3 => from_minifloat(code, 3) * step.step,
        Format::Fp8E5M2 => from_minifloat(code, 2) * step.step,
        Format::Grid2 => {
            let magnitude = MAGNITUDES[usize::from(code / 2)] * step.step;
            let bounded = magnitude.clamp(-f32::MAX, f32::MAX);
            if code & 1 == 0 { bounded } else { -bounded }
        }
        Format::Sign if code == 1 => -step.step,
        Format::Sign => step.step,
    }
}

/// The code of the nearest level; of the lower one if two are as near.
fn nearest_level(value: i32) -> u8 {
    let distance = |code: &u8| (i32::from(LEVELS[usize::from(*code)]) - value).abs();
    (0..16u8).min_by_key(distance).unwrap_or(0)
}

/// The value of an 8-bit float with so many bits of significand; no code is special.
fn from_minifloat(code: u8, significand_bits: i32) -> f32 {
    let bias = if significand_bits == 3 { 7 } else { 15 };
    let exponent = i32::from(code & 0x7f) >> significand_bits;
    let fraction = i32::from(code & 0x7f) - (exponent << significand_bits);
    let significand = if exponent == 0 { fraction } else { fraction + (1 << significand_bits) };
    let magnitude = significand as f32 * 2f32.powi(exponent.max(1) - bias - significand_bits);
    if code & 0x80 == 0 { magnitude } else { -magnitude }
}

/// The code of one of the 8-bit floats around a value: of the nearest, or of an even code if two
/// are as near; or the upper one if the bits that it lacks, with random ones added, carry.
fn minifloat(value: f32, significand_bits: i32, largest: f32, random: Option<(Key, u32)>) -> u8 {
    let magnitude = value.abs().min(largest);
    let sign = u8::from(value.is_sign_negative()) << 7;
    let float = |code: u8| from_minifloat(code, significand_bits);
    let below = (0..=0x7f).rev().find(|code| float(*code) <= magnitude).unwrap_or(0);
    if let (Some((key, index)), 0) = (random, below >> significand_bits) {
        let subnormal = magnitude / float(1) + key.dither(index);
        return subnormal.round_ties_even() as u8 | sign;
    }
    if float(below) == magnitude {
        return below | sign;
    }
    // Exact, as both are floats with few bits between neighbours.
    let (down, up) = (magnitude - float(below), float(below + 1) - magnitude);
    let take_upper = match random {
        None => up < down || (up == down && below % 2 == 1),
        Some((key, index)) => {
            let dropped = (1u32 << (23 - significand_bits)) - 1;
            (magnitude.to_bits() & dropped) + (key.bits(index) & dropped) > dropped
        }
    };
    (below + u8::from(take_upper)) | sign
}

/// Where a code's bits go: (byte, bit in it) of each, from the low one up.
fn places(bits: u8, codes: usize, index: usize) -> Vec<(usize, usize)> {
    let widths: &[usize] = match bits {
        1 => &[1],
        2 => &[2],
        4 => &[4],
        5 => &[4, 1],
        6 => &[4, 2],
        _ => &[8],
    };
    let (mut places, mut start) = (Vec::new(), 0);
    for width in widths {
        let plane = codes * width / 8;
        places.extend((0..*width).map(|bit| (start + index % plane, index / plane * width + bit)));
        start += plane;
    }
    places
}

fn pack(bits: u8, codes: &[u8], packed: &mut [u8]) {
    for (index, code) in codes.iter().enumerate() {
        for (bit, (byte, place)) in places(bits, codes.len(), index).into_iter().enumerate() {
            packed[byte] |= (code >> bit & 1) << place;
        }
    }
}

fn unpack(bits: u8, packed: &[u8], codes: usize) -> Vec<u8> {
    let code = |index| {
        let places = places(bits, codes, index).into_iter().enumerate();
        places.map(|(bit, (byte, place))| (packed[byte] >> place & 1) << bit).sum()
    };
    (0..codes).map(code).collect()
}

fn from_bf16(stored: u16) -> f32 {
    f32::from_bits(u32::from(stored) << 16)
}

/// The bf16 nearest to a value, the even one of two as near; beyond the largest, infinity.
fn bf16(value: f32) -> u16 {
    let upper = (value.to_bits() >> 16) as u16;
    if value.is_nan() {
        return upper | 0x40;
    }
    let rest = value.to_bits() & 0xffff;
    upper + u16::from(rest > 0x8000 || (rest == 0x8000 && upper % 2 == 1))
}

fn from_f16(stored: u16) -> f32 {
    let (exponent, fraction) = (i32::from(stored >> 10 & 31), f32::from(stored & 0x3ff));
    let magnitude = match (exponent, stored & 0x3ff) {
        (31, 0) => f32::INFINITY,
        (31, payload) => f32::from_bits(0x7fc0_0000 | u32::from(payload) << 13),
        (0, _) => fraction * 2f32.powi(-24),
        _ => (fraction + 1024.0) * 2f32.powi(exponent - 25),
    };
    f32::from_bits(magnitude.to_bits() | u32::from(stored & 0x8000) << 16)
}

/// The binary16 nearest to a value, the even one of two as near.
fn f16(value: f32) -> u16 {
    let sign = (value.to_bits() >> 16) as u16 & 0x8000;
    let magnitude = value.abs();
    if value.is_nan() {
        return sign | 0x7e00 | (value.to_bits() >> 13 & 0x3ff) as u16;
    }
    if magnitude >= 65520.0 {
        return sign | 0x7c00;
    }
    // The exponent of its last place, at least that of the subnormals; halving by it is exact.
    let exponent = ((magnitude.to_bits() >> 23) as i32 - 127).max(-14);
    let significand = f64::from(magnitude) * 2f64.powi(10 - exponent);
    // 1024 and more carry into the exponent, which starts at 1 for them.
    sign | (significand.round_ties_even() as u16 + ((exponent + 14) << 10) as u16)
}
