//! Requests that can't be: one clear error, and the engine goes on.

use gradwire::{Collective, Communicator, DataType, Engine, Error, Memory, ReduceOp, Request};

use crate::job::job;

/// The error of a request with this memory.
fn refusal(
    world: &Communicator,
    collective: Collective,
    (dtype, op): (DataType, ReduceOp),
    input: &[Memory],
    output: &[Memory],
) -> String {
    let mut request = Request::new(collective, dtype, op);
    request.input = input.to_vec();
    request.output = output.to_vec();
    // SAFETY: nothing is started.
    match unsafe { world.submit(request) } {
        Err(Error::Request(text)) => text,
        other => panic!("{collective} of {input:?} to {output:?}: {other:?}"),
    }
}

/// A part of some memory, by bytes.
fn part(memory: &mut [u8], from: usize, to: usize) -> Memory {
    Memory::of(&mut memory[from..to])
}

#[test]
fn wrong_requests_are_refused_with_a_reason() {
    job(3, &[("transport", "shm")], |engine, world| {
        refused_ranks(world);
        refused_memory(world);
        refused_groups(engine);
        let mut tensor = [1i32];
        world.all_reduce(&mut tensor, ReduceOp::Sum).unwrap();
        assert_eq!(tensor, [3]);
    });
}

fn refused_ranks(world: &Communicator) {
    let me = world.rank();
    let floats = (DataType::F32, ReduceOp::Sum);
    let mut bytes = [0u8; 12];
    let tensor = [Memory::of(&mut bytes)];
    let refused = |collective, input: &[Memory], output: &[Memory]| {
        refusal(world, collective, floats, input, output)
    };
    let text = refused(Collective::Broadcast { root: 3 }, &[], &tensor);
    assert_eq!(text, "broadcast: there is no rank 3 in a group of 3");
    let text = refused(Collective::Gather { root: u32::MAX }, &tensor, &[]);
    assert!(text.contains("there is no rank 4294967295 in a group of 3"), "{text}");
    for (from, to) in [(me, me), ((me + 1) % 3, (me + 2) % 3)] {
        let text = refused(Collective::SendReceive { from, to }, &tensor, &[]);
        assert!(text.contains("exactly one of the two ends must be this rank"), "{text}");
    }
    let text = refused(Collective::SendReceive { from: me, to: 3 }, &tensor, &[]);
    assert!(text.contains("there is no rank 3"), "{text}");
    let text =
        refusal(world, Collective::AllReduce, (DataType::F32, ReduceOp::BitXor), &[], &tensor);
    assert!(text.contains("bxor does not apply to float32"), "{text}");
}

fn refused_memory(world: &Communicator) {
    use Collective::*;
    let floats = (DataType::F32, ReduceOp::Sum);
    let mut memory = [0u8; 48];
    let memory = &mut memory[..];
    let (whole, odd) = (part(memory, 0, 48), part(memory, 0, 47));
    let refused = |collective, input: &[Memory], output: &[Memory]| {
        refusal(world, collective, floats, input, output)
    };
    let text = refused(AllReduce, &[], &[odd]);
    assert_eq!(text, "47 bytes are no whole number of float32 elements");
    let text = refused(AllReduce, &[], &[]);
    assert!(text.contains("all_reduce: output of 0 ranges"), "{text}");
    let text = refused(AllReduce, &[whole], &[whole]);
    assert!(text.contains("all_reduce: input of 1 ranges with 48 bytes"), "{text}");
    let four = part(memory, 0, 4);
    let text = refused(AllGather, &[four], &[part(memory, 4, 24)]);
    assert!(text.contains("can't be divided into 3 chunks of float32"), "{text}");
    let text = refused(ReduceScatter, &[whole], &[Memory::of(&mut [0u8; 20])]);
    assert!(text.contains("reduce_scatter") && text.contains("bytes"), "{text}");
    let text = refused(AllGather, &[part(memory, 0, 8)], &[part(memory, 12, 48)]);
    assert!(text.contains("8") && text.contains("12"), "{text}");
    refused_overlaps(world, memory);
}

fn refused_overlaps(world: &Communicator, memory: &mut [u8]) {
    use Collective::*;
    let me = world.rank() as usize;
    let floats = (DataType::F32, ReduceOp::Sum);
    let mut outputs: Vec<Memory> =
        (0..3).map(|rank| part(memory, rank * 16, rank * 16 + 16)).collect();
    let input = outputs[(me + 1) % 3];
    let text = refusal(world, AllGather, floats, &[input], &outputs);
    assert!(text.contains("all_gather: output overlaps with input"), "{text}");
    let shifted = part(memory, me * 16 + 4 - 4 * (me / 2), me * 16 + 20 - 4 * (me / 2));
    let off_by_one = if me == 2 { part(memory, 28, 44) } else { shifted };
    let text = refusal(world, AllGather, floats, &[off_by_one], &outputs);
    assert!(text.contains("overlaps"), "{text}");
    outputs[1] = outputs[0];
    let mut apart = [0u8; 16];
    let text = refusal(world, AllGather, floats, &[Memory::of(&mut apart)], &outputs);
    assert!(text.contains("all_gather: pieces of the output overlap"), "{text}");
}

fn refused_groups(engine: &Engine) {
    let refused = |members: &[u32]| match engine.communicator("odd", members) {
        Err(Error::Request(text)) => text,
        other => panic!("{members:?}: {other:?}"),
    };
    let me = engine.config().rank;
    assert!(refused(&[(me + 1) % 3]).contains(&format!("rank {me} is not in group 'odd'")));
    assert!(refused(&[0, 1, 2, 3]).contains("names rank 3, the world has 3"));
    assert!(refused(&[0, 1, 2, 1]).contains("names a rank twice"));
    assert!(refused(&[]).contains("is not in group"));
}
