//! Sparse forms against plain definitions, and against bytes that no encoder made.

use gradwire_codec::sparse::{
    SparseError, SparseValue, decode_sparse_add, encode_sparse, non_zero_blocks, pack_blocks,
    packed_blocks_bytes, sparse_bytes, top_k, unpack_blocks_add,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

fn value() -> impl Strategy<Value = f32> {
    prop_oneof![
        6 => -1.0f32..1.0,
        2 => select(vec![0.0, -0.0, 0.5, -0.5]),
        1 => any::<u32>().prop_map(f32::from_bits),
    ]
}

/// By sorting everything.
fn plain_top_k(values: &[f32], k: usize) -> Vec<u32> {
    let mut order: Vec<u32> = (0..values.len() as u32).collect();
    order.sort_by_key(|index| std::cmp::Reverse(values[*index as usize].to_bits() & 0x7fff_ffff));
    order.truncate(k);
    order.sort_unstable();
    order
}

fn selected(values: &[f32], k: usize) -> Vec<u32> {
    let mut indices = vec![99];
    top_k(values, k, &mut indices);
    indices
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn top_k_is_the_first_of_the_sorted(values in vec(value(), 0..1100), k in 0usize..1200) {
        prop_assert_eq!(selected(&values, k), plain_top_k(&values, k));
    }

    #[test]
    fn sparse_values_arrive(
        values in vec(-1.0f32..1.0, 1..600),
        spread in 1usize..400,
        k in 0usize..600,
    ) {
        // Spread over several pages.
        let mut wide = vec![0.0; values.len() * spread];
        values.iter().enumerate().for_each(|(index, value)| wide[index * spread] = *value);
        let indices = selected(&wide, k);
        for (kind, tolerance) in [(SparseValue::F32, 0.0), (SparseValue::Bf16, 1.0 / 256.0)] {
            let mut wire = vec![0; sparse_bytes(wide.len(), indices.len(), kind)];
            encode_sparse(&wide, &indices, kind, &mut wire);
            let mut sums = vec![1.0; wide.len()];
            prop_assert_eq!(decode_sparse_add(&wire, kind, &mut sums), Ok(()));
            let mut expected = vec![1.0; wide.len()];
            indices.iter().for_each(|index| expected[*index as usize] += wide[*index as usize]);
            for (sum, expected) in sums.iter().zip(&expected) {
                prop_assert!((sum - expected).abs() <= tolerance);
            }
        }
    }

    #[test]
    fn any_bytes_are_a_form_or_an_error(
        bytes in vec(any::<u8>(), 0..64),
        elements in 0usize..300,
        block in 1usize..40,
    ) {
        for kind in [SparseValue::F32, SparseValue::Bf16] {
            let mut target = vec![0.0; elements];
            if decode_sparse_add(&bytes, kind, &mut target).is_err() {
                prop_assert!(target.iter().all(|value| *value == 0.0));
            }
        }
        let mut target = vec![0.0; elements];
        if unpack_blocks_add(&bytes, block, &mut target).is_err() {
            prop_assert!(target.iter().all(|value| *value == 0.0));
        }
    }

    #[test]
    fn one_wrong_byte_is_no_panic(at in any::<prop::sample::Index>(), byte: u8) {
        let values: Vec<f32> = (0..70_000).map(|i| (i % 977) as f32).collect();
        let indices = selected(&values, 100);
        let mut wire = vec![0; sparse_bytes(values.len(), 100, SparseValue::F32)];
        encode_sparse(&values, &indices, SparseValue::F32, &mut wire);
        let at = at.index(wire.len());
        wire[at] = byte;
        let _ = decode_sparse_add(&wire, SparseValue::F32, &mut vec![0.0; values.len()]);
    }

    #[test]
    fn blocks_arrive(
        blocks in vec(prop_oneof![Just(None), vec(value(), 37).prop_map(Some)], 0..40),
        rest in vec(value(), 0..37),
        block in 1usize..80,
    ) {
        let mut values: Vec<f32> =
            blocks.into_iter().flat_map(|block| block.unwrap_or(vec![0.0; 37])).collect();
        values.extend(rest);
        let bitmap = non_zero_blocks(&values, block);
        for (index, values) in values.chunks(block).enumerate() {
            let named = bitmap[index / 8] >> (index % 8) & 1 == 1;
            prop_assert_eq!(named, values.iter().any(|value| *value != 0.0));
        }
        let mut wire = vec![0; packed_blocks_bytes(&bitmap, values.len(), block)];
        pack_blocks(&values, block, &bitmap, &mut wire);
        let mut sums = vec![0.0; values.len()];
        prop_assert_eq!(unpack_blocks_add(&wire, block, &mut sums), Ok(()));
        for (sum, value) in sums.iter().zip(&values) {
            prop_assert!(sum == value || sum.is_nan() && value.is_nan());
        }
        wire.push(0);
        prop_assert!(unpack_blocks_add(&wire, block, &mut sums).is_err());
    }
}

#[test]
fn samples_that_mislead() {
    // All large values where no sample is taken, and the reverse.
    let stride = (1_000_000 / 4096) | 1;
    let hidden: Vec<f32> =
        (0..1_000_000).map(|i| if i % stride == 1 { 1e9 } else { i as f32 * 1e-9 }).collect();
    let exposed: Vec<f32> =
        (0..1_000_000).map(|i| if i % stride == 0 { 1e9 } else { i as f32 * 1e-9 }).collect();
    for values in [hidden, exposed, vec![0.0; 1_000_000], vec![f32::NAN; 1_000_000]] {
        for k in [1, 100, 5000, 999_999] {
            assert_eq!(selected(&values, k), plain_top_k(&values, k));
        }
    }
}

#[test]
fn errors_say_what_is_wrong() {
    let kind = SparseValue::F32;
    let decode = |wire: &[u8]| decode_sparse_add(wire, kind, &mut [0.0; 8]).unwrap_err();
    assert_eq!(decode(&[0; 3]), SparseError::Length { given: 3, expected: 4 });
    assert_eq!(decode(&[0; 11]), SparseError::Length { given: 11, expected: 10 });
    assert_eq!(decode(&[0; 10]), SparseError::Count { given: 0, expected: 1 });
    let one = [1, 0, 0, 0, 8, 0, 0, 0, 0, 0];
    assert_eq!(decode(&one), SparseError::Index { index: 8, elements: 8 });
    let twice = [2, 0, 0, 0, 3, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(decode(&twice), SparseError::Order(3));
    let mut target = vec![0.0; 8];
    assert_eq!(
        unpack_blocks_add(&[4, 0, 0, 0, 0], 4, &mut target),
        Err(SparseError::Index { index: 28, elements: 8 })
    );
}
