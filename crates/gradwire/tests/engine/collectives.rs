//! Every collective with every algorithm against a plain reference.

use std::sync::Mutex;

use gradwire::{Algorithm, Collective, Communicator, DataType, Memory, ReduceOp, Request};

use crate::job::{WIRES, job, job_on_hosts};
use crate::values::{contribution, encode, reduce};

/// Small tiles, so that few elements are many tiles.
const SMALL_TILES: (&str, &str) = ("tile_bytes", "256");

/// What is asked for, but for the collective's own memory.
#[derive(Clone, Copy, Debug)]
struct Case {
    collective: Collective,
    algorithm: Algorithm,
    dtype: DataType,
    op: ReduceOp,
    elements: usize,
}

/// Runs one collective from these bytes to those.
fn run(world: &Communicator, case: Case, input: &mut [u8], output: &mut [u8]) {
    let mut request = Request::new(case.collective, case.dtype, case.op);
    request.algorithm = Some(case.algorithm);
    request.input = pieces(input);
    request.output = pieces(output);
    // SAFETY: both outlive the wait below and nobody else uses them.
    unsafe { world.submit(request) }.unwrap().wait(None).unwrap();
}

fn pieces(memory: &mut [u8]) -> Vec<Memory> {
    if memory.is_empty() { vec![] } else { vec![Memory::of(memory)] }
}

/// Runs a case and compares with what must come out.
fn check(world: &Communicator, case: Case) {
    let (me, ranks) = (world.rank() as usize, world.size() as usize);
    let Case { collective, dtype, op, elements, .. } = case;
    let of = |rank: usize, first: usize, count: usize| {
        encode(dtype, (first..first + count).map(|index| contribution(dtype, rank, index)))
    };
    let sum = |first: usize, count: usize| {
        let sum = |index| reduce(dtype, op, (0..ranks).map(|it| contribution(dtype, it, index)));
        encode(dtype, (first..first + count).map(sum))
    };
    let all = |index: &dyn Fn(usize) -> usize| -> Vec<u8> {
        (0..ranks).flat_map(|rank| of(rank, index(rank) * elements, elements)).collect()
    };
    let is_root = collective.root() == Some(me as u32);
    let whole = ranks * elements;
    let (mut input, expected) = match collective {
        Collective::AllReduce => (vec![], sum(0, elements)),
        Collective::Reduce { .. } => (vec![], if is_root { sum(0, elements) } else { vec![] }),
        Collective::Broadcast { root } => (vec![], of(root as usize, 0, elements)),
        Collective::ReduceScatter => (of(me, 0, whole), sum(me * elements, elements)),
        Collective::AllGather => (of(me, 0, elements), all(&|_| 0)),
        Collective::Gather { .. } => {
            (of(me, 0, elements), if is_root { all(&|_| 0) } else { vec![] })
        }
        Collective::Scatter { root } => {
            let input = if is_root { of(me, 0, whole) } else { vec![] };
            (input, of(root as usize, me * elements, elements))
        }
        Collective::AllToAll => (of(me, 0, whole), all(&|_| me)),
        Collective::Barrier | Collective::SendReceive { .. } => (vec![], vec![]),
    };
    let mut output =
        if collective.works_in_place() { of(me, 0, elements) } else { vec![0xee; expected.len()] };
    let before = input.clone();
    run(world, case, &mut input, &mut output);
    assert_eq!(input, before, "rank {me}: the input of {case:?} is left alone");
    // What a reduction leaves at the other ranks is nobody's business.
    if !expected.is_empty() {
        assert!(output == expected, "rank {me} of {ranks}: {case:?}");
    }
}

fn collectives(ranks: u32) -> Vec<Collective> {
    use Collective::*;
    let mut all = vec![AllReduce, ReduceScatter, AllGather, AllToAll, Barrier];
    for root in [0, ranks - 1] {
        all.extend([Reduce { root }, Broadcast { root }, Gather { root }, Scatter { root }]);
    }
    all
}

/// All types with the sum, and all operators with three types.
fn combinations(collective: Collective) -> Vec<(DataType, ReduceOp)> {
    if !collective.reduces() {
        return [DataType::U8, DataType::F16, DataType::F64].map(|it| (it, ReduceOp::Sum)).to_vec();
    }
    let mut all: Vec<_> = DataType::ALL.into_iter().map(|it| (it, ReduceOp::Sum)).collect();
    for dtype in [DataType::F32, DataType::I32, DataType::Bool] {
        let ops = ReduceOp::ALL.into_iter().filter(|op| op.supports(dtype));
        all.extend(ops.map(|op| (dtype, op)));
    }
    all
}

#[test]
fn every_collective_with_every_algorithm_is_right() {
    for wire in WIRES {
        for ranks in 1..=5 {
            let settings = [("transport", wire), SMALL_TILES];
            job(ranks, &settings, |_, world| check_all(world, &Algorithm::ALL));
        }
    }
}

const IN_LEVELS: [Algorithm; 2] = [Algorithm::Hierarchical, Algorithm::HierarchicalRing];

#[test]
fn ranks_that_share_hosts_reduce_within_them_first() {
    for (ranks, ranks_per_host) in [(4, 2), (5, 2), (6, 3), (6, 2)] {
        job_on_hosts(ranks, ranks_per_host, &[SMALL_TILES], |_, world| {
            check_all(world, &IN_LEVELS);
            for algorithm in IN_LEVELS {
                check_uneven_all_gather(world, algorithm);
                check_uneven_reduce_scatter(world, algorithm);
            }
        });
    }
}

#[test]
fn in_a_large_group_one_rank_looks_up_the_hosts_of_all() {
    job_on_hosts(66, 2, &[("lanes", "1"), SMALL_TILES], |_, world| {
        let (dtype, op) = (DataType::I32, ReduceOp::Sum);
        let (collective, algorithm) = (Collective::AllReduce, Algorithm::HierarchicalRing);
        check(world, Case { collective, algorithm, dtype, op, elements: 1000 });
    });
}

/// All that the algorithms do, with all types and operators.
fn check_all(world: &Communicator, algorithms: &[Algorithm]) {
    for collective in collectives(world.size()) {
        for &algorithm in algorithms.iter().filter(|it| it.supports(collective)) {
            for (dtype, op) in combinations(collective) {
                for elements in [1, 5, 1000] {
                    check(world, Case { collective, algorithm, dtype, op, elements });
                }
            }
        }
    }
}

#[test]
fn large_tensors_pass_windows_and_rings_of_memory() {
    for wire in WIRES {
        let settings = [("transport", wire), ("tile_bytes", "1024"), ("shm_bytes", "8192")];
        job(3, &settings, |_, world| {
            for collective in collectives(3) {
                for algorithm in Algorithm::ALL.into_iter().filter(|it| it.supports(collective)) {
                    let (dtype, op) = (DataType::F32, ReduceOp::Sum);
                    check(world, Case { collective, algorithm, dtype, op, elements: 40_001 });
                }
            }
        });
    }
}

/// Numbers whose sum depends on the order.
fn rough(rank: u32, index: usize) -> f32 {
    let mixed = (index as u32 + 1).wrapping_mul(2_654_435_761).rotate_left(rank * 7 + 3);
    (mixed as f32 - 2e9) * 1.1e-7
}

#[test]
fn all_ranks_and_all_runs_get_the_same_bits() {
    const ELEMENTS: usize = 10_000;
    for algorithm in Algorithm::ALL {
        for ranks in [3, 5] {
            let results = Mutex::new(Vec::new());
            for wire in [WIRES[0], WIRES[1], WIRES[1]] {
                job(ranks, &[("transport", wire), SMALL_TILES], |_, world| {
                    let mut tensor: Vec<u8> = (0..ELEMENTS)
                        .flat_map(|index| rough(world.rank(), index).to_le_bytes())
                        .collect();
                    let (dtype, op) = (DataType::F32, ReduceOp::Sum);
                    let collective = Collective::AllReduce;
                    let case = Case { collective, algorithm, dtype, op, elements: ELEMENTS };
                    run(world, case, &mut [], &mut tensor);
                    results.lock().unwrap().push(tensor);
                });
            }
            let results = results.into_inner().unwrap();
            assert_eq!(results.len(), 3 * ranks as usize);
            assert!(results.windows(2).all(|pair| pair[0] == pair[1]), "{algorithm}, {ranks}");
        }
    }
}

/// Rank r's share where shares differ, some of them empty.
fn share(rank: usize) -> usize {
    [700, 0, 3, 1201, 64, 9][rank]
}

/// Cuts memory into pieces of so many elements (of 4 bytes).
fn cut(memory: &mut [u8], shares: impl Iterator<Item = usize>) -> Vec<Memory> {
    let mut rest = memory;
    shares
        .map(|share| {
            let (piece, others) = std::mem::take(&mut rest).split_at_mut(share * 4);
            rest = others;
            Memory::of(piece)
        })
        .collect()
}

/// Submits with these pieces and waits.
fn run_pieces(
    world: &Communicator,
    collective: Collective,
    algorithm: Algorithm,
    [input, output]: [Vec<Memory>; 2],
) {
    let mut request = Request::new(collective, DataType::I32, ReduceOp::Sum);
    request.algorithm = Some(algorithm);
    request.input = input;
    request.output = output;
    // SAFETY: the callers keep the memory until this returns.
    unsafe { world.submit(request) }.unwrap().wait(None).unwrap();
}

fn integers(rank: usize, elements: usize) -> Vec<u8> {
    encode(DataType::I32, (0..elements).map(|index| (rank * 10_000 + index) as f64))
}

#[test]
fn ranks_may_have_shares_of_different_size() {
    for wire in WIRES {
        for ranks in 1..=5 {
            job(ranks, &[("transport", wire), SMALL_TILES], |_, world| {
                let supported =
                    |it: Collective| Algorithm::ALL.into_iter().filter(move |al| al.supports(it));
                for algorithm in supported(Collective::AllGather) {
                    check_uneven_all_gather(world, algorithm);
                }
                for algorithm in supported(Collective::ReduceScatter) {
                    check_uneven_reduce_scatter(world, algorithm);
                }
                for algorithm in supported(Collective::AllToAll) {
                    check_uneven_all_to_all(world, algorithm);
                }
            });
        }
    }
}

fn check_uneven_all_gather(world: &Communicator, algorithm: Algorithm) {
    let (me, ranks) = (world.rank() as usize, world.size() as usize);
    let mut input = integers(me, share(me));
    let mut output = vec![0; (0..ranks).map(share).sum::<usize>() * 4];
    let memory = [vec![Memory::of(&mut input)], cut(&mut output, (0..ranks).map(share))];
    run_pieces(world, Collective::AllGather, algorithm, memory);
    let expected: Vec<u8> = (0..ranks).flat_map(|rank| integers(rank, share(rank))).collect();
    assert!(output == expected, "rank {me} of {ranks}, {algorithm}");
}

fn check_uneven_reduce_scatter(world: &Communicator, algorithm: Algorithm) {
    let (me, ranks) = (world.rank() as usize, world.size() as usize);
    let whole: usize = (0..ranks).map(share).sum();
    let mut input = integers(me, whole);
    let mut output = vec![0; share(me) * 4];
    let memory = [cut(&mut input, (0..ranks).map(share)), vec![Memory::of(&mut output)]];
    run_pieces(world, Collective::ReduceScatter, algorithm, memory);
    let first: usize = (0..me).map(share).sum();
    let bias = 10_000 * ranks * (ranks - 1) / 2;
    let sums = (first..first + share(me)).map(|index| (bias + ranks * index) as f64);
    assert!(output == encode(DataType::I32, sums), "rank {me} of {ranks}, {algorithm}");
}

fn check_uneven_all_to_all(world: &Communicator, algorithm: Algorithm) {
    let (me, ranks) = (world.rank() as usize, world.size() as usize);
    let sent = |from: usize, to: usize| share((from + 2 * to) % ranks);
    let whole = |from: usize| (0..ranks).map(|to| sent(from, to)).sum::<usize>();
    let mut input = integers(me, whole(me));
    let mut output = vec![0; (0..ranks).map(|from| sent(from, me)).sum::<usize>() * 4];
    let memory = [
        cut(&mut input, (0..ranks).map(|to| sent(me, to))),
        cut(&mut output, (0..ranks).map(|from| sent(from, me))),
    ];
    run_pieces(world, Collective::AllToAll, algorithm, memory);
    let expected: Vec<u8> = (0..ranks)
        .flat_map(|from| {
            let first: usize = (0..me).map(|to| sent(from, to)).sum();
            integers(from, whole(from))[first * 4..][..sent(from, me) * 4].to_vec()
        })
        .collect();
    assert!(output == expected, "rank {me} of {ranks}, {algorithm}");
}

#[test]
fn a_ranks_own_piece_may_be_both_input_and_output() {
    const ELEMENTS: usize = 500;
    for wire in WIRES {
        job(4, &[("transport", wire), SMALL_TILES], |_, world| {
            let (me, ranks) = (world.rank() as usize, world.size() as usize);
            for algorithm in Algorithm::ALL {
                if algorithm.supports(Collective::AllGather) {
                    let mut output = vec![0; ranks * ELEMENTS * 4];
                    let own = &mut output[me * ELEMENTS * 4..][..ELEMENTS * 4];
                    own.copy_from_slice(&integers(me, ELEMENTS));
                    let memory = [vec![Memory::of(own)], vec![Memory::of(&mut output)]];
                    run_pieces(world, Collective::AllGather, algorithm, memory);
                    let expected: Vec<u8> =
                        (0..ranks).flat_map(|rank| integers(rank, ELEMENTS)).collect();
                    assert!(output == expected, "all_gather, rank {me}, {algorithm}");
                }
                if algorithm.supports(Collective::ReduceScatter) {
                    let mut input = integers(me, ranks * ELEMENTS);
                    let pieces = cut(&mut input, std::iter::repeat_n(ELEMENTS, ranks));
                    let memory = [pieces.clone(), vec![pieces[me]]];
                    run_pieces(world, Collective::ReduceScatter, algorithm, memory);
                    let first = me * ELEMENTS;
                    let sums = (first..first + ELEMENTS).map(|it| (60_000 + ranks * it) as f64);
                    let own = &input[first * 4..][..ELEMENTS * 4];
                    assert!(own == encode(DataType::I32, sums), "rank {me}, {algorithm}");
                }
            }
        });
    }
}
