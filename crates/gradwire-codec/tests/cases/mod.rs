//! Codecs and values that the tests share.

use gradwire_codec::{BlockCodec, Codec, Format, InstructionSet, Rounding, Scale};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

/// Every codec that exists.
pub fn all_codecs() -> Vec<Codec> {
    let widths = [2, 4, 5, 6, 8];
    let integers = widths.map(|bits| Format::Int { bits });
    let ranges = widths.map(|bits| Format::IntMinMax { bits });
    let others = [Format::Grid4, Format::Grid2, Format::Fp8E4M3, Format::Fp8E5M2, Format::Sign];
    let mut codecs = vec![Codec::Bf16, Codec::F16];
    for format in integers.into_iter().chain(ranges).chain(others) {
        for block in [32, 64, 128, 256, 512] {
            for scale in [Scale::PerBlock, Scale::SuperGroup] {
                for rounding in [Rounding::Nearest, Rounding::Stochastic] {
                    for smoothing in [false, true] {
                        let codec = BlockCodec { format, block, scale, rounding, smoothing };
                        if codec.check().is_ok() {
                            codecs.push(Codec::Block(codec));
                        }
                    }
                }
            }
        }
    }
    codecs
}

#[allow(dead_code)] // Not every test binary draws codecs, or names them.
pub fn codecs() -> impl Strategy<Value = Codec> {
    select(all_codecs())
}

#[allow(dead_code)]
pub fn block_codecs() -> impl Strategy<Value = (Codec, BlockCodec)> {
    let blocks: Vec<_> = all_codecs()
        .into_iter()
        .filter_map(|codec| match codec {
            Codec::Block(block) => Some((codec, block)),
            _ => None,
        })
        .collect();
    select(blocks)
}

#[allow(dead_code)]
pub fn instruction_sets() -> Vec<InstructionSet> {
    InstructionSet::ALL.into_iter().filter(|set| set.is_available()).collect()
}

/// Values of all magnitudes whose largest lies far below the largest float.
#[allow(dead_code)]
pub fn finite_value() -> impl Strategy<Value = f32> {
    prop_oneof![
        8 => -1.0f32..1.0,
        2 => (-1.0f32..1.0, -20i32..20).prop_map(|(x, exponent)| x * 2f32.powi(exponent)),
        1 => select(vec![0.0, -0.0, 1e-3, -1e-3]),
    ]
}

/// Any values: ordinary, of one extreme magnitude, or any bits at all.
#[allow(dead_code)]
pub fn any_values(most: usize) -> impl Strategy<Value = Vec<f32>> {
    let landmarks = vec![
        0.0,
        -0.0,
        f32::MAX,
        f32::MIN,
        f32::MIN_POSITIVE,
        f32::from_bits(1),
        f32::NAN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        1e-30,
        65519.0,
        65520.0,
        6e-8,
    ];
    let bits = any::<u32>().prop_map(f32::from_bits);
    prop_oneof![
        4 => vec(finite_value(), 0..=most),
        1 => (vec(-1.0f32..1.0, 0..=most), -149i32..127).prop_map(|(values, exponent)| {
            values.into_iter().map(|x| (f64::from(x) * 2f64.powi(exponent)) as f32).collect()
        }),
        1 => vec(prop_oneof![200 => finite_value(), 1 => select(landmarks)], 0..=most),
        1 => vec(bits, 0..=most),
    ]
}
