//! A program bound to sizes: lengths of steps, tiles, peers and what wakes what.

use std::sync::Arc;

use gradwire_core::{Descriptor, Plan, PlanError};
use gradwire_reduce::{DataType, ReduceOp};
use gradwire_schedule::{Algorithm, Buffer, Collective, Hosts};

fn plan(
    collective: Collective,
    algorithm: Algorithm,
    (rank, ranks): (u32, u32),
    input: &[u64],
    output: &[u64],
) -> Result<Arc<Plan>, PlanError> {
    let descriptor = Descriptor {
        collective,
        algorithm,
        dtype: DataType::F32,
        op: ReduceOp::Sum,
        codec: None,
        count: 0,
    };
    let program = algorithm.program(collective, rank, ranks).expect("the algorithm fits");
    Plan::new(descriptor, &program, input.to_vec(), output.to_vec(), 64)
}

#[test]
fn tiles_cover_a_chunk_without_gap_or_overlap() {
    for bytes in [0, 4, 60, 64, 68, 128, 1000] {
        let plan = plan(Collective::Broadcast { root: 0 }, Algorithm::Star, (0, 3), &[], &[bytes])
            .expect("the sizes fit");
        for step in 0..plan.steps.len() as u32 {
            let tiles = plan.steps[step as usize].tiles;
            assert_eq!(u64::from(tiles), bytes.div_ceil(64).max(1), "{bytes} bytes");
            let mut end = 0;
            for tile in 0..tiles {
                let (offset, length) = plan.tile(step, tile);
                assert_eq!(offset, u64::from(tile) * 64);
                assert_eq!(offset, end, "tile {tile} of {bytes} bytes starts where the last ended");
                end = offset + u64::from(length);
            }
            assert_eq!(end, bytes);
        }
    }
}

#[test]
fn edges_are_numbered_alike_at_both_ends() {
    for algorithm in Algorithm::ALL.into_iter().filter(|it| it.supports(Collective::AllReduce)) {
        for ranks in 2..=9 {
            let plans: Vec<_> = (0..ranks)
                .map(|rank| {
                    let program = algorithm.program(Collective::AllReduce, rank, ranks);
                    let chunks = program.expect("it fits").output_chunks as usize;
                    let output = vec![100; chunks];
                    plan(Collective::AllReduce, algorithm, (rank, ranks), &[], &output)
                        .expect("the sizes fit")
                })
                .collect();
            for (from, sender) in plans.iter().enumerate() {
                for to in &sender.peers {
                    let receiver = &plans[to.rank as usize];
                    let back = receiver.peers.iter().find(|peer| peer.rank == from as u32);
                    let receives = back.map_or(0, |peer| peer.receives.len());
                    assert_eq!(to.sends.len(), receives, "{algorithm} {from} to {}", to.rank);
                    for (edge, step) in to.sends.iter().enumerate() {
                        assert_eq!(sender.steps[*step as usize].edge, edge as u32);
                    }
                }
            }
        }
    }
}

#[test]
fn only_what_leaves_a_host_is_encoded() {
    let hosts = Hosts::blocks(5, 2);
    let collective = Collective::AllReduce;
    for rank in 0..5 {
        let program = Algorithm::Hierarchical.program_on(collective, rank, &hosts).unwrap();
        let descriptor = Descriptor {
            collective,
            algorithm: Algorithm::Hierarchical,
            dtype: DataType::F32,
            op: ReduceOp::Sum,
            codec: Some("int8".parse().unwrap()),
            count: 0,
        };
        let output = vec![4096; program.output_chunks as usize];
        let plan = Plan::new(descriptor, &program, vec![], output, 4096).unwrap();
        for (index, step) in plan.steps.iter().enumerate() {
            let other = step.kind.sends_to().or(step.kind.receives_from()).unwrap();
            let leaves = hosts.host_of(other) != hosts.host_of(rank);
            assert_eq!(step.is_encoded, leaves, "rank {rank}, step {index}");
            assert_eq!(plan.wire_bytes(index as u32, 0) < 4096, leaves, "rank {rank}, {index}");
            // What is spread is what others also get, and only where it is encoded.
            assert!(step.spreads == 0 || leaves, "rank {rank}, step {index}");
        }
    }
}

#[test]
fn a_step_that_frees_something_wakes_who_waits_for_it() {
    for algorithm in Algorithm::ALL.into_iter().filter(|it| it.supports(Collective::ReduceScatter))
    {
        for rank in 0..5 {
            let plan = plan(Collective::ReduceScatter, algorithm, (rank, 5), &[100; 5], &[100])
                .expect("the sizes fit");
            for (index, step) in plan.steps.iter().enumerate() {
                for earlier in &step.after {
                    let before = &plan.steps[*earlier as usize].before;
                    assert!(
                        before.contains(&(index as u32)),
                        "{algorithm}: {earlier} wakes {index}"
                    );
                }
                let Some(slot) = step.kind.writes() else { continue };
                if slot.buffer == Buffer::Scratch {
                    for toucher in &plan.scratch[slot.chunk as usize].touched_by {
                        let wakes = plan.steps[*toucher as usize].before.contains(&(index as u32));
                        assert!(wakes || *toucher == index as u32, "{algorithm}: scratch room");
                    }
                }
            }
        }
    }
}

#[test]
fn sizes_that_do_not_fit_are_refused_in_words() {
    let chunks = plan(Collective::AllGather, Algorithm::Ring, (0, 3), &[8], &[8, 8]);
    let error = chunks.expect_err("two chunks for three ranks").to_string();
    assert!(error.contains("Output has 2 chunks") && error.contains("wants 3"), "{error}");
    let lengths = plan(Collective::AllGather, Algorithm::Ring, (0, 3), &[8], &[12, 8, 8]);
    let error = lengths.expect_err("own chunk of two lengths").to_string();
    assert!(error.contains("8 and 12") || error.contains("12 and 8"), "{error}");
    assert!(error.contains("all_gather"), "{error}");
}
