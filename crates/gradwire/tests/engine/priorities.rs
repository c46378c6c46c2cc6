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
