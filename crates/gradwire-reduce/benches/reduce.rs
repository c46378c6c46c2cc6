//! Sums of two buffers, in the cache and beyond it, against copying one and against the portable
//! kernels. Throughput counts the bytes of the destination.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use gradwire_reduce::{DataType, InstructionSet, ReduceOp, Reduction};

/// Bytes of one buffer: two fit the second-level cache; two fit no cache.
const SIZES: [usize; 2] = [128 << 10, 64 << 20];
const OPERATORS: [ReduceOp; 3] = [ReduceOp::Sum, ReduceOp::Average, ReduceOp::Max];

fn combine(criterion: &mut Criterion) {
    for bytes in SIZES {
        let mut group = criterion.benchmark_group(format!("{}K", bytes >> 10));
        group.throughput(Throughput::Bytes(bytes as u64));
        let received = vec![0u8; bytes];
        let mut destination = vec![1u8; bytes];
        group.bench_function("copy", |bencher| {
            bencher.iter(|| black_box(&mut destination).copy_from_slice(black_box(&received)));
        });
        for set in InstructionSet::ALL.into_iter().filter(|set| set.is_available()) {
            for dtype in DataType::ALL.into_iter().filter(|dtype| dtype.is_float()) {
                for op in OPERATORS {
                    let reduction = Reduction::with_instruction_set(dtype, op, set)
                        .expect("every float has these operators");
                    let id = BenchmarkId::new(format!("{dtype}-{op}"), set);
                    group.bench_function(id, |bencher| {
                        bencher.iter(|| {
                            reduction.apply(
                                black_box(&mut destination),
                                black_box(&received),
                                Some(3),
                            )
                        });
                    });
                }
            }
        }
    }
}

criterion_group!(benches, combine);
criterion_main!(benches);
