//! Every kernel against the plain reference, bit for bit.

mod reference;

use gradwire_reduce::{DataType, InstructionSet, ReduceOp, Reduction, Scaling};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

/// Every data type with every operator that supports it.
fn combinations() -> Vec<(DataType, ReduceOp)> {
    let all = DataType::ALL.into_iter().flat_map(|dtype| ReduceOp::ALL.map(|op| (dtype, op)));
    all.filter(|(dtype, op)| op.supports(*dtype)).collect()
}

fn instruction_sets() -> impl Iterator<Item = InstructionSet> {
    InstructionSet::ALL.into_iter().filter(|set| set.is_available())
}

/// Bit patterns that random bytes would seldom hit, as elements of a type.
fn landmarks(dtype: DataType) -> Vec<Vec<u8>> {
    let (significand_bits, size) = match dtype {
        DataType::F64 => (52, 8),
        DataType::F32 => (23, 4),
        DataType::F16 => (10, 2),
        DataType::Bf16 => (7, 2),
        _ => (0, dtype.size_bytes()),
    };
    let sign = 1u64 << (8 * size - 1);
    let infinity = (sign - 1) & !((1u64 << significand_bits) - 1);
    let one = (infinity / 2) & !((1u64 << significand_bits) - 1);
    let magnitudes = [
        0,
        1,
        2,
        (1 << significand_bits) - 1,
        1 << significand_bits,
        one,
        one + 1,
        infinity.wrapping_sub(1) & (sign - 1),
        infinity,
        infinity | 1,
        infinity | (1 << significand_bits >> 1),
        sign - 1,
    ];
    let patterns = magnitudes.into_iter().flat_map(|magnitude| [magnitude, magnitude | sign]);
    patterns.map(|bits| bits.to_le_bytes()[..size].to_vec()).collect()
}

/// An element of the type: any bytes, or a landmark.
fn element(dtype: DataType) -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![2 => vec(any::<u8>(), dtype.size_bytes()), 1 => select(landmarks(dtype))]
}

/// The bytes of two elements to combine.
type Pair = (Vec<u8>, Vec<u8>);

/// A type, an operator, and pairs of elements.
fn cases() -> impl Strategy<Value = (DataType, ReduceOp, Vec<Pair>)> {
    select(combinations()).prop_flat_map(|(dtype, op)| {
        let pairs = vec((element(dtype), element(dtype)), 0..100);
        pairs.prop_map(move |pairs| (dtype, op, pairs))
    })
}

fn finishes() -> impl Strategy<Value = Option<u32>> {
    prop_oneof![Just(None), (1u32..1000).prop_map(Some)]
}

/// The elements in one buffer, after `offset` bytes that are not theirs.
fn buffer<'a>(offset: usize, elements: impl Iterator<Item = &'a Vec<u8>>) -> Vec<u8> {
    vec![0xa5; offset].into_iter().chain(elements.flatten().copied()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..Default::default() })]

    #[test]
    fn kernels_equal_the_reference_and_commute(
        (dtype, op, pairs) in cases(),
        finish in finishes(),
        offsets in (0usize..16, 0usize..16, 0usize..16),
    ) {
        let a = buffer(offsets.0, pairs.iter().map(|pair| &pair.0));
        let b = buffer(offsets.1, pairs.iter().map(|pair| &pair.1));
        let (a, b) = (&a[offsets.0..], &b[offsets.1..]);
        let expected: Vec<u8> = pairs
            .iter()
            .flat_map(|(a, b)| reference::combine(dtype, op, a, b, finish))
            .collect();
        for set in instruction_sets() {
            let reduction = Reduction::with_instruction_set(dtype, op, set).unwrap();
            for (ours, theirs) in [(a, b), (b, a)] {
                let mut destination = buffer(offsets.2, [ours.to_vec()].iter());
                reduction.apply(&mut destination[offsets.2..], theirs, finish);
                prop_assert_eq!(&destination[offsets.2..], &expected, "{} {} {}", dtype, op, set);

                let mut destination = vec![0x5a; offsets.2 + a.len()];
                reduction.apply_into(&mut destination[offsets.2..], ours, theirs, finish);
                prop_assert_eq!(&destination[offsets.2..], &expected, "{} {} {}", dtype, op, set);
                prop_assert!(destination[..offsets.2].iter().all(|&byte| byte == 0x5a));
            }
        }
    }

    #[test]
    fn scaling_equals_the_reference(
        (dtype, _, pairs) in cases(),
        ranks in prop_oneof![1u32..10, 1u32..1 << 24],
        offset in 0usize..16,
    ) {
        prop_assume!(dtype != DataType::Bool);
        let elements = buffer(offset, pairs.iter().map(|pair| &pair.0));
        let expected: Vec<u8> =
            pairs.iter().flat_map(|pair| reference::divide(dtype, &pair.0, ranks)).collect();
        for set in instruction_sets() {
            let mut scaled = elements.clone();
            Scaling::with_instruction_set(dtype, set).unwrap().apply(&mut scaled[offset..], ranks);
            prop_assert_eq!(&scaled[offset..], &expected, "{} {}", dtype, set);
        }
    }

    /// Ranks cut buffers in different places; vector loops and their tails must agree.
    #[test]
    fn elements_do_not_depend_on_their_neighbours(
        (dtype, op, pairs) in cases(),
        finish in finishes(),
        cut in any::<Index>(),
    ) {
        prop_assume!(!pairs.is_empty());
        let a = buffer(0, pairs.iter().map(|pair| &pair.0));
        let b = buffer(0, pairs.iter().map(|pair| &pair.1));
        let reduction = Reduction::new(dtype, op).unwrap();
        let mut whole = a.clone();
        reduction.apply(&mut whole, &b, finish);
        let cut = cut.index(pairs.len()) * dtype.size_bytes();
        let (mut head, mut tail) = (a[..cut].to_vec(), a[cut..].to_vec());
        reduction.apply(&mut head, &b[..cut], finish);
        reduction.apply(&mut tail, &b[cut..], finish);
        prop_assert_eq!(whole, [head, tail].concat());
    }
}

/// All pairs of codes: 65536 of them fit one buffer.
#[test]
fn one_byte_types_are_right_for_every_pair() {
    let a: Vec<u8> = (0..=255).flat_map(|code| [code; 256]).collect();
    let b: Vec<u8> = (0..256).flat_map(|_| 0..=255).collect();
    for (dtype, op) in combinations().into_iter().filter(|(dtype, _)| dtype.size_bytes() == 1) {
        for finish in [None, Some(3)] {
            let expected: Vec<u8> = (a.iter().zip(&b))
                .flat_map(|(a, b)| reference::combine(dtype, op, &[*a], &[*b], finish))
                .collect();
            for set in instruction_sets() {
                let mut destination = a.clone();
                let reduction = Reduction::with_instruction_set(dtype, op, set).unwrap();
                reduction.apply(&mut destination, &b, finish);
                assert!(destination == expected, "{dtype} {op} {set} {finish:?}");
            }
        }
    }
}

/// Division by 1 converts to single precision and back: every number must survive.
#[test]
fn two_byte_floats_survive_conversion() {
    let codes: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_ne_bytes).collect();
    for dtype in [DataType::F16, DataType::Bf16] {
        let expected: Vec<u8> =
            codes.chunks(2).flat_map(|code| reference::divide(dtype, code, 1)).collect();
        let unchanged = codes.chunks(2).zip(expected.chunks(2)).filter(|(a, b)| a == b).count();
        let nans = if dtype == DataType::F16 { 2 * 1023 } else { 2 * 127 };
        assert_eq!(unchanged, 65536 - nans + 1, "all but NaN, and the canonical NaN");
        for set in instruction_sets() {
            let mut converted = codes.clone();
            Scaling::with_instruction_set(dtype, set).unwrap().apply(&mut converted, 1);
            assert!(converted == expected, "{dtype} {set}");
        }
    }
}

#[test]
fn supported_combinations_are_those_that_resolve() {
    for dtype in DataType::ALL {
        for op in ReduceOp::ALL {
            assert_eq!(Reduction::new(dtype, op).is_ok(), op.supports(dtype), "{dtype} {op}");
        }
        assert_eq!(Scaling::new(dtype).is_ok(), ReduceOp::Average.supports(dtype), "{dtype}");
    }
}
