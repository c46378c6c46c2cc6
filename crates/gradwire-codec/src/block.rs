//! Block codecs: groups of blocks through smoothing, scaling, quantizing and packing, and back.

use crate::format::Format;
use crate::instructions::multiversion;
use crate::layout::{Layout, MAX_GROUP, PADDING};
use crate::planes;
use crate::quantize::{self, Dither, E4M3, E5M2};
use crate::random::Key;
use crate::scale::{self, BlockScale};
#[cfg(target_arch = "x86_64")]
use crate::shortcut::Shortcut;
use crate::smoothing::{MAX_BLOCK, smooth, unsmooth};
use crate::target::{Target, combine};

multiversion! {
    /// Encodes a call's values.
    encode(layout: &Layout, values: &[f32], seed: u64, wire: &mut [u8]) = encode_with
}
multiversion! {
    /// Encodes a call's values and writes values − decoded to `error`.
    encode_with_error(
        layout: &Layout, values: &[f32], seed: u64, wire: &mut [u8], error: &mut [f32],
    ) = encode_with_error_with
}
multiversion! {
    /// Encodes a call's values and replaces them by what decoding gives.
    encode_in_place(layout: &Layout, values: &mut [f32], seed: u64, wire: &mut [u8])
        = encode_in_place_with
}
multiversion! {
    /// Decodes a call's values to where they go.
    decode(layout: &Layout, wire: &[u8], target: Target<'_>) = decode_with
}

/// Room for one group on its way, such that no vector lies across two cache lines.
#[repr(align(64))]
struct Workspace {
    values: [f32; MAX_GROUP],
    codes: [u8; MAX_BLOCK],
}

impl Workspace {
    #[inline(always)]
    fn new() -> Self {
        Workspace { values: [0.0; MAX_GROUP], codes: [0; MAX_BLOCK] }
    }
}

#[inline(always)]
fn encode_with<const AVX2: bool>(layout: &Layout, values: &[f32], seed: u64, wire: &mut [u8]) {
    let (key, mut workspace) = (Key::new(seed), None);
    for (group, values) in values.chunks(layout.group_elements()).enumerate() {
        encode_group::<AVX2>(layout, group, values, key, wire, &mut workspace);
    }
}

#[inline(always)]
fn encode_with_error_with<const AVX2: bool>(
    layout: &Layout,
    values: &[f32],
    seed: u64,
    wire: &mut [u8],
    error: &mut [f32],
) {
    let (key, mut workspace) = (Key::new(seed), None);
    let size = layout.group_elements();
    for (group, (values, error)) in values.chunks(size).zip(error.chunks_mut(size)).enumerate() {
        encode_group::<AVX2>(layout, group, values, key, wire, &mut workspace);
        decode_group::<AVX2>(layout, group, wire, &mut workspace, &mut Target::Store(error), 0);
        for (error, value) in error.iter_mut().zip(values) {
            *error = value - *error;
        }
    }
}

#[inline(always)]
fn encode_in_place_with<const AVX2: bool>(
    layout: &Layout,
    values: &mut [f32],
    seed: u64,
    wire: &mut [u8],
) {
    let (key, mut workspace) = (Key::new(seed), None);
    for (group, values) in values.chunks_mut(layout.group_elements()).enumerate() {
        encode_group::<AVX2>(layout, group, values, key, wire, &mut workspace);
        decode_group::<AVX2>(layout, group, wire, &mut workspace, &mut Target::Store(values), 0);
    }
}

#[inline(always)]
fn decode_with<const AVX2: bool>(layout: &Layout, wire: &[u8], mut target: Target<'_>) {
    let mut workspace = None;
    let size = layout.group_elements();
    for group in 0..layout.groups() {
        decode_group::<AVX2>(layout, group, wire, &mut workspace, &mut target, group * size);
    }
}

/// Encodes one group of blocks.
#[inline(always)]
fn encode_group<const AVX2: bool>(
    layout: &Layout,
    group: usize,
    values: &[f32],
    key: Key,
    wire: &mut [u8],
    workspace: &mut Option<Workspace>,
) {
    #[cfg(target_arch = "x86_64")]
    if AVX2 && let Some(shortcut) = Shortcut::of(layout, values.len()) {
        // SAFETY: AVX2 is set only in functions compiled for it.
        return unsafe { shortcut.encode(layout, group, values, wire) };
    }
    let workspace = workspace.get_or_insert_with(Workspace::new);
    let padded = values.len().next_multiple_of(PADDING);
    let work = &mut workspace.values[..padded];
    work[..values.len()].copy_from_slice(values);
    work[values.len()..].fill(0.0);
    let mut counted = values.len();
    if layout.codec.smoothing {
        work.chunks_mut(layout.block).for_each(|block| smooth::<AVX2>(block, layout.block));
        counted = padded;
    }
    let scales = scale::write::<AVX2>(layout, group, work, counted, wire);
    let first = group * layout.group_blocks();
    for (index, (block, scale)) in work.chunks(layout.block).zip(scales).enumerate() {
        let (index, codes) = (first + index, &mut workspace.codes[..block.len()]);
        let dither = scale::is_stochastic(layout)
            .then(|| Dither { key, first: (index * layout.block) as u32 });
        if scale.step.is_nan() {
            codes.fill(0);
        } else {
            quantize::<AVX2>(layout.codec.format, block, scale, dither, codes);
        }
        let payload = &mut wire[layout.payload(index, codes.len())];
        planes::pack(layout.codec.format.bits(), codes, payload);
    }
}

/// Decodes one group of blocks to where its values go: element `start` of the target and the
/// following.
#[inline(always)]
fn decode_group<const AVX2: bool>(
    layout: &Layout,
    group: usize,
    wire: &[u8],
    workspace: &mut Option<Workspace>,
    target: &mut Target<'_>,
    start: usize,
) {
    let size = layout.group_elements();
    let count = size.min(layout.elements - group * size);
    #[cfg(target_arch = "x86_64")]
    if AVX2 && let Some(shortcut) = Shortcut::of(layout, count) {
        // SAFETY: AVX2 is set only in functions compiled for it.
        return unsafe { shortcut.decode(layout, group, wire, target, start) };
    }
    let workspace = workspace.get_or_insert_with(Workspace::new);
    let padded = count.next_multiple_of(PADDING);
    let scales = scale::read(layout, group, wire);
    let first = group * layout.group_blocks();
    let blocks = workspace.values[..padded].chunks_mut(layout.block);
    for (index, (block, scale)) in blocks.zip(scales).enumerate() {
        let codes = &mut workspace.codes[..block.len()];
        let payload = &wire[layout.payload(first + index, codes.len())];
        planes::unpack(layout.codec.format.bits(), payload, codes);
        dequantize::<AVX2>(layout.codec.format, codes, scale, block);
        if layout.codec.smoothing {
            unsmooth::<AVX2>(block, layout.block);
        }
    }
    combine(target, start, &workspace.values[..count]);
}

#[inline(always)]
fn quantize<const AVX2: bool>(
    format: Format,
    values: &[f32],
    scale: BlockScale,
    dither: Option<Dither>,
    codes: &mut [u8],
) {
    let step = scale.step;
    match (format, dither) {
        (Format::Int { bits }, None) => {
            quantize::to_integers::<AVX2>(bits, values, step, None, codes);
        }
        (Format::Int { bits }, Some(dither)) => {
            quantize::to_integers::<AVX2>(bits, values, step, Some(dither), codes);
        }
        (Format::IntMinMax { bits }, None) => quantize::to_range(bits, values, scale, None, codes),
        (Format::IntMinMax { bits }, Some(dither)) => {
            quantize::to_range(bits, values, scale, Some(dither), codes);
        }
        (Format::Fp8E4M3, None) => quantize::to_minifloats::<E4M3>(values, step, None, codes),
        (Format::Fp8E4M3, Some(dither)) => {
            quantize::to_minifloats::<E4M3>(values, step, Some(dither), codes);
        }
        (Format::Fp8E5M2, None) => quantize::to_minifloats::<E5M2>(values, step, None, codes),
        (Format::Fp8E5M2, Some(dither)) => {
            quantize::to_minifloats::<E5M2>(values, step, Some(dither), codes);
        }
        (Format::Grid4, _) => quantize::to_grid::<AVX2>(values, step, codes),
        (Format::Grid2, _) => quantize::to_magnitudes(values, step, codes),
        (Format::Sign, _) => quantize::to_signs(values, codes),
    }
}

#[inline(always)]
fn dequantize<const AVX2: bool>(
    format: Format,
    codes: &[u8],
    scale: BlockScale,
    values: &mut [f32],
) {
    let step = scale.step;
    match format {
        Format::Int { bits } => quantize::from_integers(bits, codes, step, values),
        Format::IntMinMax { .. } => quantize::from_range(codes, scale, values),
        Format::Grid4 => quantize::from_grid::<AVX2>(codes, step, values),
        Format::Fp8E4M3 => quantize::from_minifloats::<E4M3>(codes, step, values),
        Format::Fp8E5M2 => quantize::from_minifloats::<E5M2>(codes, step, values),
        Format::Grid2 => quantize::from_magnitudes(codes, step, values),
        Format::Sign => quantize::from_signs(codes, step, values),
    }
}
