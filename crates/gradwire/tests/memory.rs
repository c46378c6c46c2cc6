//! What the engine holds beside the caller's tensors does not grow with them.

#[path = "engine/job.rs"]
mod job;

use std::sync::atomic::{AtomicU64, Ordering};

use gradwire::{Algorithm, Collective, DataType, Memory, ReduceOp, Request};

const TILE_BYTES: u64 = 128 << 10;
const WINDOW_TILES: u64 = 16;
/// Between two ranks no algorithm has more receive steps and scratch chunks than these.
const STEPS: u64 = 4;

/// Most bytes that any rank's engine held at once during an all-reduce of so many bytes.
fn peak(wire: &str, algorithm: Algorithm, bytes: usize) -> u64 {
    let most = AtomicU64::new(0);
    job::job(2, &[("transport", wire)], |engine, world| {
        let mut tensor = vec![1.0f32; bytes / 4];
        let mut request = Request::new(Collective::AllReduce, DataType::F32, ReduceOp::Sum);
        request.algorithm = Some(algorithm);
        request.output = vec![Memory::of(&mut tensor)];
        // SAFETY: the tensor is kept until the operation is done.
        unsafe { world.submit(request) }.unwrap().wait(None).unwrap();
        assert!(tensor.iter().all(|value| *value == 2.0));
        let counters = engine.counters();
        let peaks = counters
            .iter()
            .filter(|(name, _)| matches!(*name, "bytes_held_peak" | "bytes_scratch_peak"));
        most.fetch_max(peaks.map(|(_, value)| value).sum(), Ordering::Relaxed);
    });
    most.into_inner()
}

#[test]
fn memory_is_bounded_by_tiles_in_flight() {
    let bound = STEPS * WINDOW_TILES * TILE_BYTES;
    for wire in job::WIRES {
        for mebibytes in [64, 256] {
            let peak = peak(wire, Algorithm::Direct, mebibytes << 20);
            assert!(peak <= bound, "{wire}, {mebibytes} MiB: {peak} of {bound} bytes");
        }
        for algorithm in Algorithm::ALL {
            let peak = peak(wire, algorithm, 24 << 20);
            assert!(peak <= bound, "{wire}, {algorithm}: {peak} of {bound} bytes");
        }
    }
}
