//! Ends of all kinds: in good order, by abort, by time.

use std::time::{Duration, Instant};

use gradwire::{Cause, Collective, DataType, Error, Memory, ReduceOp, Request};

use crate::job::{WIRES, job};

#[test]
fn a_rank_may_leave_while_others_still_work() {
    for wire in WIRES {
        job(3, &[("transport", wire)], |engine, world| {
            let mut tensor = [1.0f32; 1000];
            world.all_reduce(&mut tensor, ReduceOp::Sum).unwrap();
            if world.rank() == 2 {
                engine.shutdown(Duration::from_secs(1));
                engine.shutdown(Duration::from_secs(1));
                assert!(matches!(world.barrier(), Err(Error::ShutDown)));
                assert!(matches!(engine.world(), Err(Error::ShutDown)));
                return;
            }
            let pair = engine.communicator("pair", &[0, 1]).unwrap();
            for _ in 0..200 {
                pair.all_reduce(&mut tensor, ReduceOp::Max).unwrap();
            }
            assert_eq!(tensor, [3.0; 1000]);
            let error = world.all_reduce(&mut tensor, ReduceOp::Sum).unwrap_err();
            assert_eq!((error.cause(), error.culprit()), (Some(Cause::PeerLost), Some(2)));
            assert!(error.to_string().contains("has left the job"), "{error}");
            pair.barrier().unwrap();
        });
    }
}

/// What was sent before a goodbye arrives, on whichever lane it travels and whichever ends first.
#[test]
fn a_rank_may_leave_as_soon_as_it_has_sent() {
    let settings =
        [("transport", "tcp"), ("lanes", "4"), ("tile_bytes", "4096"), ("algorithm", "direct")];
    for _ in 0..10 {
        job(3, &settings, |engine, world| {
            world.barrier().unwrap();
            let mut tensor = vec![world.rank() as f32 + 1.0; 200_000];
            world.broadcast(&mut tensor, 0).unwrap();
            if world.rank() == 0 {
                engine.shutdown(Duration::from_secs(2));
            }
            assert!(tensor.iter().all(|value| *value == 1.0));
        });
    }
}

/// The grace is for peers that don't answer; nobody waits for it when all leave.
#[test]
fn ranks_that_leave_together_do_not_wait() {
    for wire in WIRES {
        let shortest = std::sync::Mutex::new(Duration::MAX);
        for _ in 0..5 {
            job(2, &[("transport", wire)], |engine, world| {
                world.barrier().unwrap();
                let start = Instant::now();
                engine.shutdown(Duration::from_secs(5));
                let mut shortest = shortest.lock().unwrap();
                *shortest = start.elapsed().min(*shortest);
            });
        }
        let shortest = shortest.into_inner().unwrap();
        assert!(shortest < Duration::from_millis(300), "{wire}: {shortest:?}");
    }
}

/// Some lanes of a pair are still being made when the first operation over it ends.
#[test]
fn a_rank_may_leave_before_all_its_lanes_are_made() {
    for _ in 0..20 {
        job(5, &[("transport", "tcp"), ("lanes", "8")], |engine, world| {
            world.barrier().unwrap();
            engine.shutdown(Duration::from_secs(2));
        });
    }
}

#[test]
fn an_abort_ends_the_group_on_all_ranks_and_no_other() {
    for wire in WIRES {
        job(3, &[("transport", wire)], |engine, world| {
            let other = engine.communicator("other", world.members()).unwrap();
            other.barrier().unwrap();
            let mut tensor = [1.0f32; 1000];
            if world.rank() == 1 {
                world.abort("enough");
            }
            let error = world.all_reduce(&mut tensor, ReduceOp::Sum).unwrap_err();
            assert_eq!((error.cause(), error.culprit()), (Some(Cause::Aborted), Some(1)));
            let text = error.to_string();
            assert!(text.contains("rank 1 aborted the group: enough"), "{text}");
            let Err(after) = world.all_reduce(&mut tensor, ReduceOp::Sum) else {
                panic!("the group has failed")
            };
            let text = after.to_string();
            assert!(matches!(after, Error::Group { .. }), "{text}");
            assert!(text.contains("all_reduce(float32, sum, 1000 elements"), "{text}");
            assert!(text.contains("enough") && text.contains("make a new group"), "{text}");
            let mut tensor = [1.0f32; 1000];
            other.all_reduce(&mut tensor, ReduceOp::Sum).unwrap();
            let new = engine.world().unwrap();
            new.all_reduce(&mut tensor, ReduceOp::Sum).unwrap();
            assert_eq!(tensor, [9.0; 1000]);
        });
    }
}

#[test]
fn a_wait_that_is_over_does_not_end_the_operation() {
    for wire in WIRES {
        job(2, &[("transport", wire)], |_, world| {
            let mut tensor = vec![1.0f32; 100_000];
            if world.rank() == 1 {
                std::thread::sleep(Duration::from_millis(300));
                return world.all_reduce(&mut tensor, ReduceOp::Sum).unwrap();
            }
            let mut request = Request::new(Collective::AllReduce, DataType::F32, ReduceOp::Sum);
            request.output = vec![Memory::of(&mut tensor)];
            // SAFETY: the tensor is kept until the operation is done.
            let handle = unsafe { world.submit(request) }.unwrap();
            let error = handle.wait(Some(Duration::from_millis(20))).unwrap_err();
            assert!(matches!(error, Error::WaitTimeout { .. }), "{error}");
            assert!(error.to_string().contains("all_reduce(float32, sum, 100000"), "{error}");
            assert!(!handle.is_done() && handle.error().is_none());
            handle.wait(None).unwrap();
            assert!(tensor == vec![2.0; 100_000]);
        });
    }
}

#[test]
fn who_does_not_come_in_time_is_named() {
    for wire in WIRES {
        job(3, &[("transport", wire)], |_, world| {
            world.barrier().unwrap();
            world.set_timeout(Duration::from_secs(1));
            let began = Instant::now();
            if world.rank() == 2 {
                // Its engine answers for itself, but it never asks for the operation.
                return std::thread::sleep(Duration::from_secs(4));
            }
            let error = world.all_reduce(&mut [1.0f32; 1000], ReduceOp::Sum).unwrap_err();
            assert_eq!(
                (error.cause(), error.culprit()),
                (Some(Cause::Timeout), Some(2)),
                "{error}"
            );
            let text = error.to_string();
            assert!(text.contains("rank 2 on ") && text.contains("did not join"), "{text}");
            assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
        });
    }
}

#[test]
fn a_shutdown_ends_what_is_in_flight_here_and_there() {
    for wire in WIRES {
        job(2, &[("transport", wire)], |engine, world| {
            world.barrier().unwrap();
            let mut tensor = vec![1.0f32; 1000];
            if world.rank() == 1 {
                let error = world.all_reduce(&mut tensor, ReduceOp::Sum).unwrap_err();
                assert_eq!(error.culprit(), Some(0), "{error}");
                return;
            }
            let collective = Collective::SendReceive { from: 1, to: 0 };
            let mut request = Request::new(collective, DataType::F32, ReduceOp::Sum);
            request.output = vec![Memory::of(&mut tensor)];
            // SAFETY: the tensor is kept until the operation is done.
            let handle = unsafe { world.submit(request) }.unwrap();
            engine.shutdown(Duration::from_secs(1));
            let error = handle.wait(None).unwrap_err();
            assert!(error.to_string().contains("the engine was shut down"), "{error}");
        });
    }
}
