//! Several operations at once: on one group, on several, from several threads.

use std::time::{Duration, Instant};

use gradwire::{Collective, Communicator, DataType, Engine, Handle, Memory, ReduceOp, Request};

use crate::job::{WIRES, job};

/// Starts an all-reduce.
fn start(group: &Communicator, tensor: &mut [i64]) -> Handle {
    let mut request = Request::new(Collective::AllReduce, DataType::I64, ReduceOp::Sum);
    request.output = vec![Memory::of(tensor)];
    // SAFETY: the callers keep the tensor until the operation is done.
    unsafe { group.submit(request) }.unwrap()
}

/// Operation `number`'s contribution of a rank, and the sum over all members.
fn tensor(rank: u32, number: usize, elements: usize) -> Vec<i64> {
    (0..elements).map(|index| (number * 1000 + index) as i64 * i64::from(rank + 1)).collect()
}

fn sum(group: &Communicator, number: usize, elements: usize) -> Vec<i64> {
    let factor: i64 = group.members().iter().map(|rank| i64::from(rank + 1)).sum();
    tensor(0, number, elements).into_iter().map(|value| value * factor).collect()
}

fn elements(number: usize) -> usize {
    [1, 1000, 17, 90_000, 0, 300][number % 6]
}

#[test]
fn many_operations_are_in_flight_on_one_group() {
    for wire in WIRES {
        job(3, &[("transport", wire)], |_, world| {
            let mut tensors: Vec<Vec<i64>> =
                (0..100).map(|number| tensor(world.rank(), number, elements(number))).collect();
            let handles: Vec<Handle> =
                tensors.iter_mut().map(|tensor| start(world, tensor)).collect();
            // The last first, and from another thread than the one that submitted.
            std::thread::scope(|scope| {
                scope.spawn(|| handles.iter().rev().for_each(|it| it.wait(None).unwrap()));
            });
            for (number, tensor) in tensors.iter().enumerate() {
                assert!(*tensor == sum(world, number, elements(number)), "operation {number}");
            }
        });
    }
}

#[test]
fn more_operations_than_fit_wait_for_room() {
    const OPERATIONS: usize = 3000;
    for wire in WIRES {
        job(2, &[("transport", wire)], |_, world| {
            let mut tensors: Vec<Vec<i64>> =
                (0..OPERATIONS).map(|number| tensor(world.rank(), number, 10)).collect();
            let handles: Vec<Handle> =
                tensors.iter_mut().map(|tensor| start(world, tensor)).collect();
            for (number, (handle, tensor)) in handles.iter().zip(&tensors).enumerate() {
                handle.wait(None).unwrap();
                assert!(*tensor == sum(world, number, 10), "operation {number}");
            }
        });
    }
}

fn completed(engine: &Engine) -> u64 {
    let counters = engine.counters();
    counters.iter().find(|(name, _)| *name == "operations_completed").unwrap().1
}

/// Waits without driving: the engine has a thread for that.
fn until(done: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !done() {
        assert!(Instant::now() < end, "nobody drives");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn handles_may_be_polled_and_dropped() {
    for wire in WIRES {
        job(2, &[("transport", wire)], |engine, world| {
            for number in 0..10 {
                let mut polled = tensor(world.rank(), number, 50_000);
                let handle = start(world, &mut polled);
                until(|| handle.is_done());
                assert!(handle.error().is_none());
                let mut dropped = tensor(world.rank(), number, 50_000);
                let before = completed(engine);
                drop(start(world, &mut dropped));
                until(|| completed(engine) > before);
                assert!(polled == sum(world, number, 50_000) && polled == dropped);
            }
        });
    }
}

#[test]
fn two_groups_in_opposite_orders() {
    const ROUNDS: usize = 1000;
    for wire in WIRES {
        job(3, &[("transport", wire)], |engine, world| {
            let groups =
                ["one", "other"].map(|it| engine.communicator(it, world.members()).unwrap());
            let is_odd = world.rank() % 2 == 1;
            for round in 0..ROUNDS {
                let size = elements(round) / 10 + 1;
                let mut tensors = [0, 1].map(|group| tensor(world.rank(), round + group, size));
                let order = if is_odd { [1, 0] } else { [0, 1] };
                let handles = order.map(|group| start(&groups[group], &mut tensors[group]));
                handles.iter().for_each(|handle| handle.wait(None).unwrap());
                for (group, tensor) in tensors.iter().enumerate() {
                    assert!(*tensor == sum(world, round + group, size), "round {round}");
                }
            }
        });
    }
}

#[test]
fn two_threads_on_two_groups() {
    const ROUNDS: usize = 1000;
    for wire in WIRES {
        job(3, &[("transport", wire)], |engine, world| {
            std::thread::scope(|scope| {
                for name in ["one", "other"] {
                    let group = engine.communicator(name, world.members()).unwrap();
                    scope.spawn(move || {
                        for round in 0..ROUNDS {
                            let size = elements(round) / 10 + 1;
                            let mut tensor = tensor(group.rank(), round, size);
                            group.all_reduce(&mut tensor, ReduceOp::Sum).unwrap();
                            assert!(tensor == sum(&group, round, size), "{name}, round {round}");
                        }
                    });
                }
            });
        });
    }
}

#[test]
fn groups_may_overlap_and_number_their_ranks_as_they_like() {
    for wire in WIRES {
        job(5, &[("transport", wire)], |engine, world| {
            let members: [&[u32]; 5] = [&[0, 1, 2, 3, 4], &[4, 2, 0], &[1, 2], &[3], &[3, 1, 4]];
            for round in 0..3 {
                let mine = members.iter().filter(|group| group.contains(&world.rank()));
                let groups: Vec<_> =
                    mine.map(|group| engine.communicator("same name", group).unwrap()).collect();
                let mut tensors: Vec<_> =
                    groups.iter().map(|_| tensor(world.rank(), round, 5000)).collect();
                let handles: Vec<_> = groups
                    .iter()
                    .zip(&mut tensors)
                    .map(|(group, tensor)| start(group, tensor))
                    .collect();
                for ((handle, group), tensor) in handles.iter().zip(&groups).zip(&tensors) {
                    handle.wait(None).unwrap();
                    assert!(*tensor == sum(group, round, 5000), "{:?}", group.members());
                    assert_eq!(group.members()[group.rank() as usize], world.rank());
                }
            }
        });
    }
}
