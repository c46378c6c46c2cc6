//! Encoding and decode-and-add of one tile, in bytes of f32: the best instruction set, the portable
//! kernels, and the plain reference.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use gradwire_codec::{Codec, InstructionSet, reference};

/// Elements of a tile.
const ELEMENTS: usize = 32 << 10;

/// Beside the plain names.
const VARIANTS: [&str; 10] = [
    "int8+stochastic",
    "int8+minmax",
    "int8+hadamard",
    "int4+uniform",
    "int4/64+uniform+perblock+no-hadamard",
    "int4/64+perblock+no-hadamard",
    "int4+stochastic",
    "int4+minmax",
    "fp8_e4m3+stochastic",
    "sign1+hadamard",
];

fn codecs(criterion: &mut Criterion) {
    let values: Vec<f32> = (0..ELEMENTS as u32)
        .map(|index| (index.wrapping_mul(0x9e37_79b9) >> 8) as f32 / 8_388_608.0 - 1.0)
        .collect();
    let mut target = values.clone();
    for name in Codec::NAMES.into_iter().chain(VARIANTS) {
        let codec: Codec = name.parse().expect("a codec");
        let mut wire = vec![0; codec.encoded_bytes(ELEMENTS)];
        let mut encode = criterion.benchmark_group(format!("encode {name}"));
        encode.throughput(Throughput::Bytes(4 * ELEMENTS as u64));
        for set in [InstructionSet::best(), InstructionSet::Portable] {
            let bound = codec.with_instruction_set(set);
            encode.bench_function(BenchmarkId::from_parameter(set), |bencher| {
                bencher.iter(|| bound.encode(black_box(&values), 1, black_box(&mut wire)));
            });
        }
        encode.bench_function("reference", |bencher| {
            bencher.iter(|| reference::encode(codec, black_box(&values), 1));
        });
        encode.finish();
        let mut decode = criterion.benchmark_group(format!("decode_add {name}"));
        decode.throughput(Throughput::Bytes(4 * ELEMENTS as u64));
        for set in [InstructionSet::best(), InstructionSet::Portable] {
            let bound = codec.with_instruction_set(set);
            decode.bench_function(BenchmarkId::from_parameter(set), |bencher| {
                bencher.iter(|| {
                    bound.decode_add(black_box(&wire), None, black_box(&mut target), None);
                });
            });
        }
        decode.bench_function("reference", |bencher| {
            bencher.iter(|| {
                reference::decode_add(codec, black_box(&wire), None, black_box(&mut target), None);
            });
        });
        decode.finish();
    }
}

criterion_group!(benches, codecs);
criterion_main!(benches);
