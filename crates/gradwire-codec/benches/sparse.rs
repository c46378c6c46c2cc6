//! The largest 1 % of 16 Mi values, and their sparse form, in bytes of f32.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use gradwire_codec::sparse::{
    SparseValue, decode_sparse_add, encode_sparse, non_zero_blocks, sparse_bytes, top_k,
};

const ELEMENTS: usize = 16 << 20;

/// Products of two uniform values: many small ones, few large ones.
fn values() -> Vec<f32> {
    let uniform = |hash: u32| (hash >> 8) as f32 / 8_388_608.0 - 1.0;
    let value = |index: u32| {
        let hash = index.wrapping_mul(0x9e37_79b9);
        uniform(hash) * uniform((hash ^ hash >> 15).wrapping_mul(0x846c_a68b))
    };
    (0..ELEMENTS as u32).map(value).collect()
}

fn sparse(criterion: &mut Criterion) {
    let (values, mut indices, k) = (values(), Vec::new(), ELEMENTS / 100);
    let mut group = criterion.benchmark_group("sparse");
    group.throughput(Throughput::Bytes(4 * ELEMENTS as u64));
    group.sample_size(10);
    group.bench_function("top_k 1 %", |bencher| {
        bencher.iter(|| top_k(black_box(&values), k, &mut indices));
    });
    group.bench_function("top_k 1 % by sorting", |bencher| {
        bencher.iter(|| {
            let mut all: Vec<u32> = (0..ELEMENTS as u32).collect();
            let magnitude = |index: &u32| values[*index as usize].to_bits() & 0x7fff_ffff;
            all.select_nth_unstable_by_key(k, |index| std::cmp::Reverse(magnitude(index)));
            all
        });
    });
    top_k(&values, k, &mut indices);
    let mut wire = vec![0; sparse_bytes(ELEMENTS, k, SparseValue::F32)];
    group.bench_function("encode_sparse", |bencher| {
        bencher.iter(|| encode_sparse(black_box(&values), &indices, SparseValue::F32, &mut wire));
    });
    let mut target = vec![0.0; ELEMENTS];
    group.bench_function("decode_sparse_add", |bencher| {
        bencher.iter(|| decode_sparse_add(black_box(&wire), SparseValue::F32, &mut target));
    });
    let zeros = vec![0.0; ELEMENTS];
    group.bench_function("non_zero_blocks of zeros", |bencher| {
        bencher.iter(|| non_zero_blocks(black_box(&zeros), 256));
    });
}

criterion_group!(benches, sparse);
criterion_main!(benches);
