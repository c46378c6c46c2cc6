//! Send and receive.

use gradwire::{Collective, Communicator, Handle, Memory, ReduceOp, Request};

use crate::job::{WIRES, job};

/// Starts a receive; from any rank if `from` is `None`.
fn receive(world: &Communicator, tensor: &mut [i32], from: Option<u32>, tag: u32) -> Handle {
    let to = world.rank();
    let collective = Collective::SendReceive { from: from.unwrap_or(0), to };
    let mut request = Request::new(collective, gradwire::DataType::I32, ReduceOp::Sum);
    request.output = vec![Memory::of(tensor)];
    request.any_source = from.is_none();
    request.tag = tag;
    // SAFETY: the callers keep the tensor until they have waited.
    unsafe { world.submit(request) }.unwrap()
}

/// A message that says who sent it, with which tag, and as which of several.
fn message(from: u32, tag: u32, number: usize, elements: usize) -> Vec<i32> {
    (0..elements)
        .map(|index| (from * 1_000_000 + tag * 1000) as i32 + (number + index) as i32)
        .collect()
}

#[test]
fn messages_are_told_apart_by_tag_and_keep_their_order() {
    const SIZES: [usize; 4] = [0, 1, 3000, 200_000];
    for wire in WIRES {
        job(3, &[("transport", wire)], |_, world| {
            let me = world.rank();
            let (next, last) = ((me + 1) % 3, (me + 2) % 3);
            let mut tensors: Vec<Vec<i32>> = Vec::new();
            let mut handles = Vec::new();
            // Tags in the opposite order of the sends.
            for tag in [2, 1] {
                for (number, elements) in SIZES.into_iter().enumerate() {
                    let mut tensor = vec![0; elements];
                    let handle = receive(world, &mut tensor, Some(last), tag);
                    handles.push((handle, message(last, tag, number, elements)));
                    tensors.push(tensor);
                }
            }
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    for tag in [1, 2] {
                        for (number, elements) in SIZES.into_iter().enumerate() {
                            world.send(&message(me, tag, number, elements), next, tag).unwrap();
                        }
                    }
                });
            });
            for ((handle, expected), tensor) in handles.iter().zip(&tensors) {
                handle.wait(None).unwrap();
                assert!(tensor == expected);
                assert_eq!(handle.source(), Some(last));
            }
        });
    }
}

#[test]
fn a_receive_from_any_source_says_whose_message_it_got() {
    const ROUNDS: usize = 50;
    for (wire, elements) in [("shm", 5), ("tcp", 5), ("shm", 40_000), ("tcp", 40_000)] {
        job(4, &[("transport", wire)], |_, world| {
            if world.rank() > 0 {
                for number in 0..ROUNDS {
                    world.send(&message(world.rank(), 9, number, elements), 0, 9).unwrap();
                }
                return;
            }
            let mut received = [0; 4];
            for _ in 0..ROUNDS {
                let mut tensors: Vec<Vec<i32>> = (0..3).map(|_| vec![0; elements]).collect();
                let handles: Vec<Handle> =
                    tensors.iter_mut().map(|tensor| receive(world, tensor, None, 9)).collect();
                for (handle, tensor) in handles.iter().zip(&tensors) {
                    handle.wait(None).unwrap();
                    let source = handle.source().unwrap();
                    assert!(*tensor == message(source, 9, received[source as usize], elements));
                    received[source as usize] += 1;
                }
            }
            assert_eq!(received, [0, ROUNDS, ROUNDS, ROUNDS]);
        });
    }
}
