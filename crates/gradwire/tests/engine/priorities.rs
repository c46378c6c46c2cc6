//! What is urgent overtakes what is large, and the large still ends.

use std::time::{Duration, Instant};

use gradwire::{Collective, Communicator, DataType, Handle, Memory, ReduceOp, Request};

use crate::job::{WIRES, job};

fn start(world: &Communicator, tensor: &mut [f32], priority: u8) -> Handle {
    let mut request = Request::new(Collective::AllReduce, DataType::F32, ReduceOp::Sum);
    request.output = vec![Memory::of(tensor)];
    request.priority = priority;
    // SAFETY: the callers keep the tensor until the operation is done.
    unsafe { world.submit(request).unwrap() }
}

#[test]
fn an_urgent_operation_overtakes_a_large_one() {
    for wire in WIRES {
        job(2, &[("transport", wire)], |_, world| {
            let mut large = vec![1f32; 32 << 20];
            let mut small = vec![1f32; 16 << 10];
            start(world, &mut small, 0).wait(None).unwrap();
            let slow = start(world, &mut large, 128);
            let urgent = start(world, &mut small, 0);
            urgent.wait(None).unwrap();
            assert!(!slow.is_done(), "128 MiB were through before 64 KiB");
            slow.wait(None).unwrap();
            assert!(small.iter().all(|value| *value == 4.0));
            assert!(large.iter().all(|value| *value == 2.0));
        });
    }
}

#[test]
fn a_stream_of_urgent_operations_starves_nobody() {
    job(2, &[("transport", "tcp")], |_, world| {
        let mut large = vec![1f32; 4 << 20];
        let slow = start(world, &mut large, 255);
        let mut urgent: Vec<Vec<f32>> = (0..4).map(|_| vec![0f32; 1 << 20]).collect();
        let began = Instant::now();
        let mut running: Vec<Handle> =
            urgent.iter_mut().map(|tensor| start(world, tensor, 0)).collect();
        // There is always an urgent one waiting; both ranks stop after the same number of rounds.
        for round in 0..400 {
            let at = round % running.len();
            running[at].wait(None).unwrap();
            running[at] = start(world, &mut urgent[at], 0);
        }
        assert!(slow.is_done(), "starved for {:?}", began.elapsed());
        for handle in running {
            handle.wait(Some(Duration::from_secs(30))).unwrap();
        }
    });
}

#[test]
fn small_tiles_and_short_queues_change_no_result() {
    let ways = [
        (None, None),
        (Some(16 << 10), Some(40 << 10)),
        (Some(64), Some(1)),
        (Some(64 << 10), Some(16 << 20)),
        (None, None),
    ];
    // With three lanes and a short queue two of them carry what is urgent only.
    for settings in WIRES.map(|wire| [("transport", wire), ("lanes", "3")]) {
        job(3, &settings, |engine, world| {
            for (tile_bytes, in_flight) in ways {
                engine.limit_in_flight(in_flight);
                let mut tensors = [100_001, 7_001]
                    .map(|count| (0..count).map(|index| index as f32).collect::<Vec<f32>>());
                let running = [200, 0].into_iter().zip(&mut tensors).map(|(priority, tensor)| {
                    let mut request =
                        Request::new(Collective::AllReduce, DataType::F32, ReduceOp::Sum);
                    request.output = vec![Memory::of(tensor)];
                    request.tile_bytes = tile_bytes;
                    request.priority = priority;
                    // SAFETY: the tensor outlives the wait.
                    unsafe { world.submit(request).unwrap() }
                });
                running.collect::<Vec<Handle>>().iter().for_each(|it| it.wait(None).unwrap());
                for tensor in tensors {
                    let expected = |index: usize| 3.0 * index as f32;
                    assert!((0..tensor.len()).all(|index| tensor[index] == expected(index)));
                }
            }
        });
    }
}

#[test]
fn a_tile_that_can_not_be_is_refused() {
    job(1, &[], |_, world| {
        for tile_bytes in [0, 100, 256 << 10] {
            let mut request = Request::new(Collective::AllReduce, DataType::F32, ReduceOp::Sum);
            request.tile_bytes = Some(tile_bytes);
            let mut tensor = [1f32; 4];
            request.output = vec![Memory::of(&mut tensor)];
            // SAFETY: nothing is started.
            let error = unsafe { world.submit(request) }.unwrap_err().to_string();
            assert!(error.contains("multiple of 64"), "{error}");
        }
    });
}
