//! What each codec promises: bounds on the error, unbiasedness, and what becomes of special values.

mod cases;

use cases::{all_codecs, block_codecs, finite_value};
use gradwire_codec::{BlockCodec, Codec, Format, Rounding, Scale};
use proptest::collection::vec;
use proptest::prelude::*;

const BLOCKS_OF_SUPER_GROUP: usize = 8;

fn decoded(codec: Codec, values: &[f32], seed: u64) -> Vec<f32> {
    let mut wire = vec![0; codec.encoded_bytes(values.len())];
    codec.encode(values, seed, &mut wire);
    let mut decoded = vec![0.0; values.len()];
    codec.decode(&wire, &mut decoded);
    decoded
}

fn largest(values: &[f32]) -> f64 {
    values.iter().fold(0.0, |most, value| f64::from(value.abs()).max(most))
}

fn norm(values: impl Iterator<Item = f64>) -> f64 {
    values.map(|value| value * value).sum::<f64>().sqrt()
}

/// Distance of the levels around `value`, or half of it when rounding to nearest, for a block of
/// which `unit` is the value of the largest magnitude.
fn tolerance(codec: BlockCodec, value: f64, unit: f64) -> f64 {
    let half = if codec.rounding == Rounding::Nearest { 0.5 } else { 1.0 };
    let float = |largest: f64, significand_bits: i32, least: f64| {
        half * (value.abs() * 2f64.powi(-significand_bits)).max(least / largest * unit)
    };
    match codec.format {
        Format::Int { bits } => half * unit / ((1u32 << (bits - 1)) - 1) as f64,
        Format::IntMinMax { bits } => half * unit / ((1u32 << bits) - 1) as f64,
        // The widest gap of the levels is 29 of 127; half an integer comes from rounding before.
        Format::Grid4 => (14.5 + 0.5) / 127.0 * unit,
        Format::Fp8E4M3 => float(448.0, 3, 2f64.powi(-9)),
        Format::Fp8E5M2 => float(57344.0, 2, 2f64.powi(-16)),
        Format::Grid2 | Format::Sign => f64::INFINITY,
    }
}

/// What a scale stands for at most: the largest magnitude of the block (for min-max, its range),
/// more by what is lost to a bf16 and to the fractions of a super-group.
fn unit_of(codec: BlockCodec, block: &[f32], group: &[f32]) -> f64 {
    let extent = match codec.format {
        Format::IntMinMax { .. } => {
            let least = block.iter().copied().fold(f32::INFINITY, f32::min);
            let most = block.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            f64::from(most) - f64::from(least)
        }
        _ => largest(block),
    };
    let floor = 1e-27;
    let fraction = match (codec.scale, codec.format) {
        (Scale::PerBlock, _) => 0.0,
        (_, Format::Grid4) => 1.0 / 127.0,
        _ => 1.0 / 254.0,
    };
    extent * (1.0 + 1.0 / 128.0) + largest(group) * fraction * (1.0 + 1.0 / 128.0) + floor
}

fn check_bounds(codec: BlockCodec, values: &[f32], seed: u64) {
    let decoded = decoded(Codec::Block(codec), values, seed);
    let (block, group) =
        (usize::from(codec.block), usize::from(codec.block) * BLOCKS_OF_SUPER_GROUP);
    for (index, (values_of, decoded_of)) in
        values.chunks(block).zip(decoded.chunks(block)).enumerate()
    {
        let start = index * block / group * group;
        let unit = unit_of(codec, values_of, &values[start..values.len().min(start + group)]);
        for (value, decoded) in values_of.iter().zip(decoded_of) {
            let (value, decoded) = (f64::from(*value), f64::from(*decoded));
            let bound = tolerance(codec, value, unit) + largest(values_of) * 1e-6;
            assert!((value - decoded).abs() <= bound, "{codec:?}: {value} became {decoded}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn errors_are_bounded(
        (_, codec) in block_codecs(),
        values in vec(finite_value(), 0..1100),
        exponent in -60i32..60,
        seed: u64,
    ) {
        let codec = BlockCodec { smoothing: false, ..codec };
        let values: Vec<f32> = values.iter().map(|x| x * 2f32.powi(exponent)).collect();
        check_bounds(codec, &values, seed);
    }

    /// A smoothed block has values of at most its norm / √n, and its error has the norm √n times
    /// that of the errors of the smoothed values.
    #[test]
    fn errors_of_smoothed_blocks_are_bounded(
        (_, codec) in block_codecs(),
        values in vec(finite_value(), 1..513),
        seed: u64,
    ) {
        let codec = BlockCodec { smoothing: true, scale: Scale::PerBlock, ..codec };
        prop_assume!(!matches!(codec.format, Format::Grid2 | Format::Sign));
        let values = &values[..values.len().min(usize::from(codec.block))];
        let decoded = decoded(Codec::Block(codec), values, seed);
        let error = norm(values.iter().zip(&decoded).map(|(x, y)| f64::from(*x) - f64::from(*y)));
        let length = f64::from(codec.block);
        let extent = norm(values.iter().map(|x| f64::from(*x))) * length.sqrt() / length;
        let range = if let Format::IntMinMax { .. } = codec.format { 2.0 } else { 1.0 };
        // A short block is transformed in pieces of 32.
        let pieces = (length / 32.0).sqrt();
        let unit = extent * range * pieces * (1.0 + 1.0 / 128.0) + 1e-27;
        let bound = length * tolerance(codec, extent * pieces, unit) * (1.0 + 1e-5);
        prop_assert!(error <= bound, "{codec:?}: an error of {error}, not {bound}");
    }

    #[test]
    fn signs_lose_no_more_than_there_is(values in vec(finite_value(), 1..1100)) {
        let decoded = decoded("sign1".parse().unwrap(), &values, 0);
        for (values, decoded) in values.chunks(128).zip(decoded.chunks(128)) {
            let scale = f64::from(decoded[0].abs());
            let mean = values.iter().map(|x| f64::from(x.abs())).sum::<f64>() / values.len() as f64;
            prop_assert!((scale - mean).abs() <= mean / 256.0);
            for (value, decoded) in values.iter().zip(decoded) {
                prop_assert_eq!(value.is_sign_negative(), decoded.is_sign_negative());
            }
        }
    }

    #[test]
    fn one_bad_value_makes_its_block_nan_and_no_other(
        (codec, block) in block_codecs(),
        values in vec(finite_value(), 1..1100),
        at in any::<prop::sample::Index>(),
        bad in prop::sample::select(vec![f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY]),
    ) {
        let mut values = values;
        let (at, size) = (at.index(values.len()), usize::from(block.block));
        values[at] = bad;
        for (index, value) in decoded(codec, &values, 5).into_iter().enumerate() {
            prop_assert_eq!(value.is_nan(), index / size == at / size);
        }
    }

    #[test]
    fn linear_codecs_keep_what_they_made(values in vec(any::<u32>(), 0..300)) {
        let values: Vec<f32> = values.into_iter().map(f32::from_bits).collect();
        for codec in all_codecs().into_iter().filter(|codec| codec.is_linear()) {
            let once = decoded(codec, &values, 0);
            let twice = decoded(codec, &once, 1);
            for (once, twice) in once.iter().zip(&twice) {
                prop_assert_eq!(once.to_bits(), twice.to_bits());
            }
        }
    }

    #[test]
    fn half_precision_is_that_of_others(bits: u32) {
        let value = f32::from_bits(bits);
        let f16 = half::f16::from_f32(value).to_f32();
        let bf16 = half::bf16::from_f32(value).to_f32();
        prop_assert_eq!(decoded(Codec::F16, &[value], 0)[0].to_bits(), f16.to_bits());
        prop_assert_eq!(decoded(Codec::Bf16, &[value], 0)[0].to_bits(), bf16.to_bits());
    }
}

fn wave(length: u32) -> Vec<f32> {
    (0..length).map(|i| (i as f32 * 0.618).sin() * (1.0 + (i % 11) as f32)).collect()
}

#[test]
fn every_codec_is_lossy() {
    let values = wave(999);
    for codec in all_codecs() {
        let mut wire = vec![0; codec.encoded_bytes(values.len())];
        let mut error = vec![0.0; values.len()];
        codec.encode_with_error(&values, 3, &mut wire, &mut error);
        let lost = error.iter().filter(|error| **error != 0.0).count();
        assert!(lost > values.len() / 2, "{codec} loses {lost} of {}", values.len());
    }
}

/// The mean over many seeds, within six standard deviations: at most half a step for one seed.
#[test]
fn stochastic_rounding_is_unbiased() {
    const SEEDS: u64 = 3000;
    let values = &wave(64)[..];
    for codec in all_codecs().into_iter().filter(|codec| codec.is_stochastic()) {
        let Codec::Block(block) = codec else { unreachable!("only block codecs are stochastic") };
        if block.smoothing || block.block != 32 {
            continue;
        }
        let mut sums = vec![0.0; values.len()];
        for seed in 0..SEEDS {
            let decoded = decoded(codec, values, seed);
            sums.iter_mut().zip(decoded).for_each(|(sum, value)| *sum += f64::from(value));
        }
        for (index, (sum, value)) in sums.iter().zip(values).enumerate() {
            let of = &values[index / 32 * 32..][..32];
            let step = tolerance(block, f64::from(*value), unit_of(block, of, values));
            let bias = (sum / SEEDS as f64 - f64::from(*value)).abs();
            let allowed = 6.0 * 0.5 * step / (SEEDS as f64).sqrt();
            assert!(bias <= allowed, "{codec}: value {index} is off by {bias}, not {allowed}");
        }
    }
}

#[test]
fn seeds_decide_stochastic_rounding_and_nothing_else() {
    let values = wave(500);
    let encoded = |codec: Codec, seed| {
        let mut wire = vec![0; codec.encoded_bytes(values.len())];
        codec.encode(&values, seed, &mut wire);
        wire
    };
    for codec in all_codecs() {
        assert_eq!(encoded(codec, 1), encoded(codec, 1), "{codec}");
        assert_eq!(encoded(codec, 1) == encoded(codec, 2), !codec.is_stochastic(), "{codec}");
    }
}

#[test]
fn zeros_stay_zeros() {
    for codec in all_codecs() {
        for zero in [0.0, -0.0] {
            for length in [1, 31, 32, 300, 1100] {
                let decoded = decoded(codec, &vec![zero; length], 9);
                assert!(decoded.iter().all(|value| *value == 0.0), "{codec}: {decoded:?}");
            }
        }
    }
}

#[test]
fn subnormal_blocks_become_small_or_zero() {
    for codec in all_codecs() {
        for value in [1e-45f32, 1e-40, f32::MIN_POSITIVE, 1e-36] {
            let values: Vec<f32> =
                (0..300).map(|i| if i % 3 == 0 { -value } else { value }).collect();
            for decoded in decoded(codec, &values, 2) {
                assert!(decoded.abs() <= 1e-28, "{codec}: {value} became {decoded}");
            }
        }
    }
}

#[test]
fn huge_values_stay_finite() {
    for codec in all_codecs() {
        let Codec::Block(block) = codec else { continue };
        // Smoothing mixes the errors of a block, so that its largest value may come out larger.
        let most = if block.smoothing { f32::MAX / 16.0 } else { f32::MAX };
        for scale in [1.0f32, 0.999, 0.75, 0.4] {
            let alternating =
                |i: u32| if i.is_multiple_of(3) { -most * scale } else { most * scale };
            let ramp = |i: u32| most * scale * (i as f32 / 149.5 - 1.0);
            for values in
                [(0..300).map(alternating).collect::<Vec<_>>(), (0..300).map(ramp).collect()]
            {
                let decoded = decoded(codec, &values, 4);
                assert!(decoded.iter().all(|value| value.is_finite()), "{codec} of {scale}");
                if !block.smoothing && !matches!(block.format, Format::Grid2 | Format::Sign) {
                    check_bounds(block, &values, 4);
                }
            }
        }
    }
}

/// Max's quantizers of a Gaussian lose 36.3 % of its energy with one bit and 11.75 % with two.
#[test]
fn few_bits_are_as_good_as_can_be() {
    let values = gaussian_with_outliers(0);
    assert!((relative_error("sign1", &values) - 0.363).abs() < 0.02);
    assert!((relative_error("int2", &values) - 0.1175).abs() < 0.01);
}

#[test]
fn four_bits_are_spent_well() {
    let values = gaussian_with_outliers(50);
    let default = relative_error("int4", &values);
    assert!(default < 0.0070, "{default}");
    for other in ["int4+no-hadamard", "int4+uniform", "int4+stochastic", "int4/64", "int4+minmax"] {
        let error = relative_error(other, &values);
        assert!(default < error, "{default} against {error} of {other}");
    }
}

/// Sums of twelve uniform values, which are Gaussian enough; every `rarity`-th, if any, is eight
/// times as large.
fn gaussian_with_outliers(rarity: usize) -> Vec<f32> {
    let mut state = 1u64;
    let mut uniform = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 40) as f32 / (1u64 << 24) as f32
    };
    let mut value = |index: usize| {
        let gaussian = (0..12).map(|_| uniform()).sum::<f32>() - 6.0;
        if rarity != 0 && index.is_multiple_of(rarity) { 8.0 * gaussian } else { gaussian }
    };
    (0..32_000).map(&mut value).collect()
}

/// |x − decoded|² / |x|².
fn relative_error(name: &str, values: &[f32]) -> f64 {
    let decoded = decoded(name.parse().expect(name), values, 0);
    let error = norm(values.iter().zip(&decoded).map(|(x, y)| f64::from(x - y)));
    (error / norm(values.iter().map(|x| f64::from(*x)))).powi(2)
}
