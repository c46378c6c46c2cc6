//! Ranks that ask for different things: all of them are told who asked for what.

use std::time::{Duration, Instant};

use gradwire::{
    Algorithm, Cause, Collective, Communicator, DataType, Engine, Error, Handle, Memory, ReduceOp,
    Request,
};

use crate::job::{WIRES, job};

const SMALL: usize = 12;
/// More than may be sent before the other side has posted the operation.
const LARGE: usize = 120_000;

/// What most ranks ask for and what one of them does, with how an error calls each.
struct Mismatch {
    name: &'static str,
    most: Asked,
    one: Asked,
}

#[derive(Clone, Copy)]
struct Asked {
    collective: Collective,
    dtype: DataType,
    op: ReduceOp,
    elements: usize,
    called: &'static str,
}

fn mismatches() -> Vec<Mismatch> {
    let asked =
        |collective, dtype, op, elements, called| Asked { collective, dtype, op, elements, called };
    let all_reduce =
        |dtype, op, elements, called| asked(Collective::AllReduce, dtype, op, elements, called);
    let small = all_reduce(DataType::F32, ReduceOp::Sum, SMALL, "all_reduce(float32, sum, 12 ");
    let large = all_reduce(DataType::F32, ReduceOp::Sum, LARGE, "all_reduce(float32, sum, 120000 ");
    let broadcast = |root, called| {
        asked(Collective::Broadcast { root }, DataType::F32, ReduceOp::Sum, SMALL, called)
    };
    let with = |name, most, one| Mismatch { name, most, one };
    vec![
        with(
            "dtype",
            small,
            all_reduce(DataType::I32, ReduceOp::Sum, SMALL, "all_reduce(int32, sum, 12 "),
        ),
        with(
            "op",
            small,
            all_reduce(DataType::F32, ReduceOp::Max, SMALL, "all_reduce(float32, max, 12 "),
        ),
        with("size", small, large),
        with("size of the others", large, small),
        with("collective", small, broadcast(0, "broadcast(float32, 12 elements, root 0")),
        with(
            "root",
            broadcast(0, "broadcast(float32, 12 elements, root 0"),
            broadcast(1, "broadcast(float32, 12 elements, root 1"),
        ),
        with(
            "barrier",
            large,
            asked(Collective::Barrier, DataType::U8, ReduceOp::Sum, 0, "barrier("),
        ),
    ]
}

/// Starts what is asked for, with the algorithm where it can do it.
fn start(
    group: &Communicator,
    asked: Asked,
    algorithm: Algorithm,
    tensor: &mut [u8],
) -> Result<Handle, Error> {
    let mut request = Request::new(asked.collective, asked.dtype, asked.op);
    request.algorithm = Some(algorithm);
    if asked.collective != Collective::Barrier {
        let bytes = asked.elements * asked.dtype.size_bytes();
        request.output = vec![Memory::of(&mut tensor[..bytes])];
    }
    // SAFETY: the caller keeps the tensor until the operation is done.
    unsafe { group.submit(request) }
}

/// Each mismatch on a group of its own, all at once, since some only show after a while.
fn disagree(engine: &Engine, world: &Communicator, odd_one: u32) {
    let mismatches = mismatches();
    let mut running = Vec::new();
    for mismatch in &mismatches {
        for algorithm in Algorithm::ALL {
            let name = format!("{}, {algorithm}", mismatch.name);
            let group = engine.communicator(&name, world.members()).unwrap();
            let asked = if world.rank() == odd_one { mismatch.one } else { mismatch.most };
            let mut tensor = vec![1; LARGE * 4];
            let handle = start(&group, asked, algorithm, &mut tensor);
            running.push((name, group, handle, tensor, mismatch));
        }
    }
    let end = Instant::now() + Duration::from_secs(10);
    for (name, group, handle, tensor, mismatch) in running {
        let who = format!("{name}: rank {} of {}", world.rank(), world.size());
        let rest = end.saturating_duration_since(Instant::now());
        // A rank may hear of it before it asks. One that only sends can be through before the others
        // have looked at what it sent; it is told with its next operation.
        let outcome = handle.and_then(|it| it.wait(Some(rest))).and_then(|()| group.barrier());
        let error = outcome.expect_err(&who);
        judge(&who, &error, mismatch, odd_one);
        // Nothing was summed, unless by ranks that agree. (A broadcast may have copied: the same.)
        assert!(world.size() > 2 || tensor.iter().all(|byte| *byte == 1), "{who}");
    }
}

fn judge(who: &str, error: &Error, mismatch: &Mismatch, odd_one: u32) {
    let text = error.to_string();
    assert_eq!(error.cause(), Some(Cause::Mismatch), "{who}: {text}");
    // The reason without the operation that this rank had asked for.
    let reason = text.split_once("ranks ask for different operations").expect(&text).1;
    for asked in [mismatch.most, mismatch.one] {
        assert!(reason.contains(asked.called), "{who}: {} is not in: {text}", asked.called);
    }
    assert!(reason.contains(&format!("rank {odd_one} ")), "{who}: {text}");
}

#[test]
fn all_ranks_are_told_who_asked_for_what() {
    for wire in WIRES {
        for ranks in [2, 3, 4] {
            job(ranks, &[("transport", wire)], |engine, world| {
                disagree(engine, world, 0);
                disagree(engine, world, ranks - 1);
            });
        }
    }
}
