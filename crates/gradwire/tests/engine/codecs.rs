//! Collectives with a codec: same bits on all ranks, nothing lost that is not told, fewer bytes.

use std::sync::Mutex;

use gradwire::{Codec, Collective, Communicator, DataType, Error, Memory, ReduceOp, Request};

use crate::job::{WIRES, job, job_on_hosts};

const CODECS: [&str; 8] =
    ["bf16", "fp16", "int8", "int6", "int5", "int4", "int4+stochastic", "fp8_e4m3"];

/// Values between -1 and 1 that differ by rank and index.
fn values(rank: u32, elements: usize) -> Vec<f32> {
    let value = |index: usize| {
        let mixed = (index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(rank) << 17;
        (mixed.wrapping_mul(0xd6e8_feb8_6659_fd93) >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..elements).map(value).collect()
}

fn submit(world: &Communicator, request: Request) -> Result<(), Error> {
    // SAFETY: the callers' memory lives until the operation is waited for here.
    unsafe { world.submit(request)? }.wait(None)
}

/// All-reduces with an error; returns the result and what was lost.
fn all_reduce(world: &Communicator, codec: &str, op: ReduceOp, len: usize) -> Outcome {
    let (mut tensor, mut error) = (values(world.rank(), len), vec![f32::NAN; len]);
    let mut request = Request::new(Collective::AllReduce, DataType::F32, op);
    request.output = vec![Memory::of(&mut tensor)];
    request.error = vec![Memory::of(&mut error)];
    request.codec = Some(codec.parse().unwrap());
    submit(world, request).unwrap();
    (tensor, error)
}

#[test]
fn all_ranks_end_with_the_same_bits_and_know_what_was_lost() {
    for wire in WIRES {
        for ranks in 1..=4 {
            all_reduce_with_every_codec(ranks, ranks, wire);
        }
    }
}

#[test]
fn so_they_do_where_only_what_leaves_a_host_is_encoded() {
    for (ranks, ranks_per_host) in [(4, 2), (5, 2), (5, 3), (6, 3), (6, 2)] {
        all_reduce_with_every_codec(ranks, ranks_per_host, "auto");
    }
}

fn all_reduce_with_every_codec(ranks: u32, ranks_per_host: u32, wire: &str) {
    let results = Mutex::new(Vec::new());
    let settings = [("transport", wire), ("tile_bytes", "16384")];
    job_on_hosts(ranks, ranks_per_host, &settings, |_, world| {
        for (codec, len) in runs() {
            let outcome = all_reduce(world, codec, ReduceOp::Average, len);
            results.lock().unwrap().push((codec, len, world.rank(), outcome));
        }
    });
    let results = results.into_inner().unwrap();
    for (codec, len) in runs() {
        let own = |it: &&(&str, usize, u32, Outcome)| it.0 == codec && it.1 == len;
        let outcomes: Vec<(u32, &Outcome)> =
            results.iter().filter(own).map(|it| (it.2, &it.3)).collect();
        check(&outcomes, codec, len);
    }
}

/// The result of an all-reduce, and what was lost of the contribution.
type Outcome = (Vec<f32>, Vec<f32>);

fn runs() -> impl Iterator<Item = (&'static str, usize)> {
    CODECS.into_iter().flat_map(|codec| [(codec, 1), (codec, 1000), (codec, 99_999)])
}

/// All ranks have the same bits: the mean of the contributions less their errors.
fn check(outcomes: &[(u32, &Outcome)], codec: &str, len: usize) {
    let bits = |values: &[f32]| values.iter().map(|it| it.to_bits()).collect::<Vec<_>>();
    let result = &outcomes[0].1.0;
    assert!(outcomes.iter().all(|(_, (tensor, _))| bits(tensor) == bits(result)), "{codec}");
    let ranks = outcomes.len();
    let (mut means, mut lost) = (vec![0.0; len], 0.0);
    for (rank, (_, error)) in outcomes {
        let given = values(*rank, len);
        for ((mean, value), error) in means.iter_mut().zip(given).zip(error) {
            *mean += (f64::from(value) - f64::from(*error)) / ranks as f64;
            lost += f64::from(error.abs()) / (len * ranks) as f64;
        }
    }
    for (index, (mean, got)) in means.iter().zip(result).enumerate() {
        let off = (f64::from(*got) - mean).abs();
        assert!(off < 1e-5, "{codec}, element {index}: {got} for {mean}");
    }
    assert!(lost < 0.2, "{codec} loses {lost} of each value");
    assert!(ranks == 1 || len < 1000 || lost > 0.0, "{codec} lost nothing: was it used?");
}

#[test]
fn gathered_pieces_are_the_same_everywhere_and_inputs_stay() {
    job(3, &[("transport", "tcp")], |_, world| check_all_gather(world, 5000));
}

#[test]
fn fewer_bytes_travel_and_are_counted() {
    job(2, &[("transport", "tcp")], |engine, world| {
        let mut tensor = values(world.rank(), 1 << 20);
        let mut request = Request::new(Collective::AllReduce, DataType::F32, ReduceOp::Sum);
        request.output = vec![Memory::of(&mut tensor)];
        request.codec = Some("int8".parse().unwrap());
        submit(world, request).unwrap();
        let counters = engine.counters();
        let counter = |name| counters.iter().find(|(it, _)| *it == name).unwrap().1;
        assert_eq!(counter("bytes_before_codec"), 4 << 20);
        assert!(counter("bytes_after_codec") * 7 < counter("bytes_before_codec") * 2);
        assert_eq!(counter("bytes_sent"), counter("bytes_after_codec"));
    });
}

#[test]
fn what_stays_within_a_host_is_not_encoded() {
    const BYTES: u64 = 4 << 20;
    job_on_hosts(4, 2, &[], |engine, world| {
        let mut tensor = values(world.rank(), BYTES as usize / 4);
        let mut request = Request::new(Collective::AllReduce, DataType::F32, ReduceOp::Sum);
        request.output = vec![Memory::of(&mut tensor)];
        request.codec = Some("int8".parse().unwrap());
        submit(world, request).unwrap();
        let counters = engine.counters();
        let counter = |name| counters.iter().find(|(it, _)| *it == name).unwrap().1;
        // Of the half that it relays, a rank sends half to the other host, twice, and as much
        // again, plain, to its own. The other half it sends there, plain, and receives.
        assert_eq!(counter("bytes_before_codec"), BYTES / 2);
        assert_eq!(counter("bytes_sent"), counter("bytes_after_codec") + BYTES);
    });
}

#[test]
fn scattered_sums_and_gathered_pieces_cross_hosts_encoded() {
    for (ranks, ranks_per_host) in [(4, 2), (5, 2), (5, 3)] {
        job_on_hosts(ranks, ranks_per_host, &[("tile_bytes", "16384")], |_, world| {
            check_reduce_scatter(world, 5000);
            check_all_gather(world, 5000);
        });
    }
}

/// Each rank's piece is the sum of the contributions less their errors.
fn check_reduce_scatter(world: &Communicator, piece: usize) {
    let ranks = world.size() as usize;
    let given = values(world.rank(), piece * ranks);
    let (mut sum, mut error) = (vec![0f32; piece], vec![f32::NAN; piece * ranks]);
    let mut request = Request::new(Collective::ReduceScatter, DataType::F32, ReduceOp::Sum);
    request.input = vec![Memory::read_only(&given)];
    request.output = vec![Memory::of(&mut sum)];
    request.error = vec![Memory::of(&mut error)];
    request.codec = Some("int6".parse().unwrap());
    submit(world, request).unwrap();
    assert_eq!(given, values(world.rank(), piece * ranks), "the input was written");
    let mut lost = [error.iter().map(|it| it.abs()).fold(0.0, f32::max)];
    world.all_reduce(&mut lost, ReduceOp::Max).unwrap();
    assert!(lost[0] > 0.0, "nothing was lost: was the codec used?");
    let mut kept: Vec<f32> = given.iter().zip(&error).map(|(value, error)| value - error).collect();
    world.all_reduce(&mut kept, ReduceOp::Sum).unwrap();
    let expected = &kept[world.rank() as usize * piece..][..piece];
    for (index, (got, expected)) in sum.iter().zip(expected).enumerate() {
        assert!((got - expected).abs() < 1e-4, "element {index}: {got} for {expected}");
    }
}

fn check_all_gather(world: &Communicator, piece: usize) {
    let ranks = world.size();
    let given = values(world.rank(), piece);
    let mut gathered = vec![0f32; piece * ranks as usize];
    let mut request = Request::new(Collective::AllGather, DataType::F32, ReduceOp::Sum);
    request.input = vec![Memory::read_only(&given)];
    request.output = vec![Memory::of(&mut gathered)];
    request.codec = Some("int6+no-hadamard".parse().unwrap());
    submit(world, request).unwrap();
    assert_eq!(given, values(world.rank(), piece), "the input was written");
    let mut highest = gathered.clone();
    world.all_reduce(&mut highest, ReduceOp::Max).unwrap();
    assert_eq!(highest, gathered, "a rank has other values");
    let expected = (0..ranks).flat_map(|rank| values(rank, piece));
    assert!(gathered.iter().zip(expected).all(|(got, value)| (got - value).abs() < 0.05));
}

#[test]
fn what_a_codec_cannot_do_is_said() {
    job(2, &[("transport", "shm")], |_, world| {
        let mut tensor = [1f32; 8];
        let mut integers = [1i32; 8];
        let with = |collective, dtype, op, memory| {
            let mut request = Request::new(collective, dtype, op);
            request.output = vec![memory];
            request.codec = Some(Codec::Bf16);
            submit(world, request).unwrap_err().to_string()
        };
        let memory = Memory::of(&mut tensor);
        let text = with(Collective::AllReduce, DataType::F32, ReduceOp::Max, memory);
        assert!(text.contains("sums and averages, not max"), "{text}");
        let text = with(Collective::Broadcast { root: 0 }, DataType::F32, ReduceOp::Sum, memory);
        assert!(text.contains("all_reduce, reduce_scatter and all_gather"), "{text}");
        let memory = Memory::of(&mut integers);
        let text = with(Collective::AllReduce, DataType::I32, ReduceOp::Sum, memory);
        assert!(text.contains("float32, not on int32"), "{text}");
    });
}
