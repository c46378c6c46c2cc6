//! Every kernel of every instruction set against the plain reference, bit for bit.

mod cases;

use cases::{all_codecs, any_values, codecs, instruction_sets};
use gradwire_codec::{Codec, reference};
use proptest::prelude::*;

/// Equal bits, or two NaN: which of two NaN a sum keeps is not defined.
fn same(left: &[f32], right: &[f32]) -> bool {
    left.len() == right.len()
        && left
            .iter()
            .zip(right)
            .all(|(l, r)| l.to_bits() == r.to_bits() || l.is_nan() && r.is_nan())
}

fn check_encode(codec: Codec, values: &[f32], seed: u64) {
    let expected = reference::encode(codec, values, seed);
    let decoded = reference::decode(codec, &expected, values.len());
    let errors: Vec<f32> = values.iter().zip(&decoded).map(|(x, y)| x - y).collect();
    for set in instruction_sets() {
        let bound = codec.with_instruction_set(set);
        let mut wire = vec![0xa5; expected.len()];
        bound.encode(values, seed, &mut wire);
        assert_eq!(wire, expected, "{codec} on {set}");
        let mut error = vec![7.0; values.len()];
        wire.fill(0x5a);
        bound.encode_with_error(values, seed, &mut wire, &mut error);
        assert_eq!(wire, expected, "{codec} on {set}, with error");
        assert!(same(&error, &errors), "errors of {codec} on {set}: {error:?}, not {errors:?}");
        let mut owned = values.to_vec();
        wire.fill(0x5a);
        bound.encode_in_place(&mut owned, seed, &mut wire);
        assert_eq!(wire, expected, "{codec} on {set}, in place");
        assert!(same(&owned, &decoded), "{codec} on {set} in place: {owned:?}, not {decoded:?}");
    }
}

fn check_decode(codec: Codec, wire: &[u8], local: &[f32], finish: Option<u32>) {
    let expected = reference::decode(codec, wire, local.len());
    let mut sums = local.to_vec();
    reference::decode_add(codec, wire, None, &mut sums, finish);
    for set in instruction_sets() {
        let bound = codec.with_instruction_set(set);
        let mut decoded = vec![7.0; local.len()];
        bound.decode(wire, &mut decoded);
        assert!(same(&decoded, &expected), "{codec} on {set}: {decoded:?}, not {expected:?}");
        bound.decode_add(wire, Some(local), &mut decoded, finish);
        assert!(same(&decoded, &sums), "sums of {codec} on {set}: {decoded:?}, not {sums:?}");
        decoded.copy_from_slice(local);
        bound.decode_add(wire, None, &mut decoded, finish);
        assert!(same(&decoded, &sums), "sums of {codec} on {set}: {decoded:?}, not {sums:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn encoding_is_the_reference(codec in codecs(), values in any_values(1100), seed: u64) {
        check_encode(codec, &values, seed);
    }

    #[test]
    fn decoding_is_the_reference(
        codec in codecs(),
        values in any_values(1100),
        seed: u64,
        finish in proptest::option::of(1u32..100),
    ) {
        let wire = reference::encode(codec, &values, seed);
        let local: Vec<f32> = values.iter().rev().copied().collect();
        check_decode(codec, &wire, &local, finish);
    }

    #[test]
    fn any_bytes_decode(codec in codecs(), local in any_values(700), seed: u64) {
        let mut state = seed;
        let wire: Vec<u8> = (0..codec.encoded_bytes(local.len()))
            .map(|_| {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                (state >> 56) as u8
            })
            .collect();
        check_decode(codec, &wire, &local, None);
    }
}

/// All lengths around the sizes of chunks, blocks and super-groups, for every codec.
#[test]
fn odd_lengths() {
    let values: Vec<f32> = (0..4099u32).map(|i| (i as f32 * 0.7).sin() * (i % 37) as f32).collect();
    for codec in all_codecs() {
        for length in [0, 1, 7, 31, 32, 33, 63, 65, 255, 257, 511, 513, 1023, 1100] {
            check_encode(codec, &values[..length], 11);
        }
    }
    for codec in ["int4", "int8", "int5", "sign1", "int2+minmax+stochastic"] {
        check_encode(codec.parse().unwrap(), &values, 12);
    }
}
