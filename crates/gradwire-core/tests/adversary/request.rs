//! What one rank submits for an item, and what it must find afterwards.

use std::sync::Arc;

use gradwire_core::{ANY_SOURCE, Descriptor, Plan};
use gradwire_reduce::{DataType, ReduceOp, Reduction};
use gradwire_schedule::{Algorithm, Collective, Hosts, Program, ProgramBuilder, Slot, StepKind};

use crate::scenario::{Call, Item};

/// Where an item stands: the group and its place there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ItemId {
    pub group: usize,
    pub item: usize,
}

/// One operation of one rank.
#[derive(Clone, Debug)]
pub struct Request {
    pub id: ItemId,
    pub plan: Arc<Plan>,
    pub tag: u32,
    pub reduction: Option<Reduction>,
    pub input: Vec<Vec<u8>>,
    pub output: Vec<Vec<u8>>,
    pub expected: Expected,
}

/// What the output must hold in the end.
#[derive(Clone, Debug)]
pub enum Expected {
    /// These bytes, whatever the chunks.
    Bytes(Vec<u8>),
    /// The reduction of this chunk's contributions; `same` on all ranks.
    Reduced { chunk: u32, elements: u64, same: bool },
    /// A message of any sender's that was not seen before.
    AnyMessage { elements: u64 },
    /// The rank asked for something else than the others: anything.
    Anything,
}

/// The contribution of a rank to an element.
fn contribution(id: ItemId, rank: u32, chunk: u32, index: u64) -> u64 {
    let mut value = (id.group as u64) << 48
        ^ (id.item as u64) << 40
        ^ u64::from(rank) << 32
        ^ u64::from(chunk) << 24
        ^ index;
    value = (value ^ value >> 31).wrapping_mul(0x7fb5_d329_728e_a185);
    value = (value ^ value >> 27).wrapping_mul(0x81da_def4_bc2d_d44d);
    value ^ value >> 33
}

/// A chunk of contributions as memory.
pub fn chunk_of(id: ItemId, rank: u32, chunk: u32, elements: u64, dtype: DataType) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(elements as usize * dtype.size_bytes());
    for index in 0..elements {
        let value = contribution(id, rank, chunk, index);
        match dtype {
            DataType::I64 => bytes.extend(value.to_le_bytes()),
            DataType::I32 => bytes.extend((value as u32).to_le_bytes()),
            DataType::U8 => bytes.push(value as u8),
            // Positive, so that sums in any order are near each other.
            DataType::F32 => bytes.extend((1.0 + (value % 9973) as f32 / 77.0).to_le_bytes()),
            other => unreachable!("no scenario uses {other}"),
        }
    }
    bytes
}

/// The reduction of all ranks' chunks, in the order of ranks.
pub fn reduced(id: ItemId, call: &Call, n: u32, chunk: u32, elements: u64) -> Vec<u8> {
    let reduction = Reduction::new(call.dtype, call.op).expect("scenarios use what is supported");
    let mut result = chunk_of(id, 0, chunk, elements, call.dtype);
    for rank in 1..n {
        reduction.apply(&mut result, &chunk_of(id, rank, chunk, elements, call.dtype), None);
    }
    result
}

/// Whether a result is what it should be; sums of floats depend on the order.
pub fn is_close(dtype: DataType, op: ReduceOp, found: &[u8], expected: &[u8]) -> bool {
    if dtype != DataType::F32 || op != ReduceOp::Sum {
        return found == expected;
    }
    let floats = |bytes: &[u8]| -> Vec<f32> {
        bytes.chunks(4).map(|it| f32::from_le_bytes(it.try_into().expect("4 bytes"))).collect()
    };
    let (found, expected) = (floats(found), floats(expected));
    found.len() == expected.len()
        && found.iter().zip(&expected).all(|(a, b)| (a - b).abs() <= 1e-4 * b.abs())
}

/// What rank `me` of `n` submits for an item: nothing, one operation or several.
pub fn requests(id: ItemId, item: &Item, me: u32, n: u32, tile_bytes: u32) -> Vec<Request> {
    match item {
        Item::Collective(call) => vec![collective(id, call, me, n, tile_bytes)],
        Item::Transfer { from, to, tag, dtype, elements } => {
            let message = chunk_of(id, *from, 0, *elements, *dtype);
            let end = End { id, dtype: *dtype, elements: *elements, tag: *tag, tile_bytes };
            if *from == me {
                vec![end.send(me, *to, message)]
            } else if *to == me {
                vec![end.receive(*from, me, Expected::Bytes(message))]
            } else {
                vec![]
            }
        }
        Item::Collect { to, senders, tag, dtype, elements } => {
            let end = End { id, dtype: *dtype, elements: *elements, tag: *tag, tile_bytes };
            if *to == me {
                let expected = Expected::AnyMessage { elements: *elements };
                return vec![end.receive(ANY_SOURCE, me, expected); senders.len()];
            }
            let mine = senders.iter().filter(|sender| **sender == me).count() as u32;
            (0..mine)
                .map(|number| {
                    let message = chunk_of(id, me, number, *elements, *dtype);
                    end.send(me, *to, message)
                })
                .collect()
        }
    }
}

/// One end of a message.
struct End {
    id: ItemId,
    dtype: DataType,
    elements: u64,
    tag: u32,
    tile_bytes: u32,
}

impl End {
    fn send(&self, from: u32, to: u32, message: Vec<u8>) -> Request {
        let mut program = ProgramBuilder::new(from, 1, 0);
        program.push(StepKind::Send { to, source: Slot::input(0) });
        self.request(from, to, program, vec![message], vec![], Expected::Bytes(vec![]))
    }

    fn receive(&self, from: u32, to: u32, expected: Expected) -> Request {
        let mut program = ProgramBuilder::new(to, 0, 1);
        program.push(StepKind::Receive { from, destination: Slot::output(0) });
        let output = vec![0x55; self.elements as usize * self.dtype.size_bytes()];
        self.request(from, to, program, vec![], vec![output], expected)
    }

    fn request(
        &self,
        from: u32,
        to: u32,
        program: ProgramBuilder,
        input: Vec<Vec<u8>>,
        output: Vec<Vec<u8>>,
        expected: Expected,
    ) -> Request {
        let descriptor = Descriptor {
            collective: Collective::SendReceive { from, to },
            algorithm: Algorithm::Direct,
            dtype: self.dtype,
            op: ReduceOp::Sum,
            codec: None,
            count: self.elements,
        };
        let plan = plan(descriptor, &program.finish(), &input, &output, self.tile_bytes);
        let (id, tag) = (self.id, self.tag);
        Request { id, plan, tag, reduction: None, input, output, expected }
    }
}

fn plan(
    descriptor: Descriptor,
    program: &Program,
    input: &[Vec<u8>],
    output: &[Vec<u8>],
    tile_bytes: u32,
) -> Arc<Plan> {
    let lengths = |chunks: &[Vec<u8>]| chunks.iter().map(|chunk| chunk.len() as u64).collect();
    Plan::new(descriptor, program, lengths(input), lengths(output), tile_bytes)
        .expect("the sizes fit")
}

/// What all ranks know alike of the size of a call.
pub fn descriptor_of(call: &Call) -> Descriptor {
    let even = call.sizes.windows(2).all(|pair| pair[0] == pair[1]);
    let count = match call.collective {
        Collective::AllToAll => 0,
        Collective::AllGather | Collective::ReduceScatter if !even => 0,
        _ => call.sizes.iter().sum(),
    };
    let (collective, algorithm) = (call.collective, call.algorithm);
    Descriptor { collective, algorithm, dtype: call.dtype, op: call.op, codec: None, count }
}

fn collective(id: ItemId, call: &Call, me: u32, n: u32, tile_bytes: u32) -> Request {
    let hosts = Hosts::blocks(n, call.ranks_per_host);
    let program = call.algorithm.program_on(call.collective, me, &hosts).expect("it fits");
    let (input, output, expected) = memory(id, call, me, n, &program);
    let descriptor = descriptor_of(call);
    let plan = plan(descriptor, &program, &input, &output, tile_bytes);
    let reduction =
        call.collective.reduces().then(|| Reduction::new(call.dtype, call.op).expect("supported"));
    Request { id, plan, tag: 0, reduction, input, output, expected }
}

type Chunks = Vec<Vec<u8>>;

/// Input, output and what the output must become.
fn memory(
    id: ItemId,
    call: &Call,
    me: u32,
    n: u32,
    program: &Program,
) -> (Chunks, Chunks, Expected) {
    let (sizes, size) = (&call.sizes, call.dtype.size_bytes());
    let chunk = |rank, number, elements| chunk_of(id, rank, number, elements, call.dtype);
    let empty = |elements: u64| vec![0x55; elements as usize * size];
    let whole = |rank| divide(&chunk(rank, 0, sizes[0]), program.output_chunks, size);
    match call.collective {
        Collective::AllReduce => {
            let expected = Expected::Reduced { chunk: 0, elements: sizes[0], same: true };
            (vec![], whole(me), expected)
        }
        Collective::Reduce { root } if root == me => {
            let expected = Expected::Reduced { chunk: 0, elements: sizes[0], same: false };
            (vec![], whole(me), expected)
        }
        Collective::Reduce { .. } => (vec![], whole(me), Expected::Bytes(chunk(me, 0, sizes[0]))),
        Collective::Broadcast { root } => {
            (vec![], whole(me), Expected::Bytes(chunk(root, 0, sizes[0])))
        }
        Collective::ReduceScatter => {
            let input = (0..n).map(|to| chunk(me, to, sizes[to as usize])).collect();
            let elements = sizes[me as usize];
            (input, vec![empty(elements)], Expected::Reduced { chunk: me, elements, same: false })
        }
        Collective::AllGather => {
            let expected = (0..n).flat_map(|rank| chunk(rank, 0, sizes[rank as usize])).collect();
            let output = sizes.iter().map(|elements| empty(*elements)).collect();
            (vec![chunk(me, 0, sizes[me as usize])], output, Expected::Bytes(expected))
        }
        Collective::Gather { root } => {
            let at_root = if root == me { n } else { 0 };
            let expected = (0..at_root).flat_map(|rank| chunk(rank, 0, sizes[0])).collect();
            let output = (0..at_root).map(|_| empty(sizes[0])).collect();
            (vec![chunk(me, 0, sizes[0])], output, Expected::Bytes(expected))
        }
        Collective::Scatter { root } => {
            let at_root = if root == me { n } else { 0 };
            let input = (0..at_root).map(|to| chunk(me, to, sizes[0])).collect();
            (input, vec![empty(sizes[0])], Expected::Bytes(chunk(root, me, sizes[0])))
        }
        Collective::AllToAll => {
            let elements = |from: u32, to: u32| sizes[(from * n + to) as usize];
            let input = (0..n).map(|to| chunk(me, to, elements(me, to))).collect();
            let output = (0..n).map(|from| empty(elements(from, me))).collect();
            let expected = (0..n).flat_map(|from| chunk(from, me, elements(from, me))).collect();
            (input, output, Expected::Bytes(expected))
        }
        Collective::Barrier => {
            let output = (0..program.output_chunks).map(|_| vec![]).collect();
            ((0..program.input_chunks).map(|_| vec![]).collect(), output, Expected::Bytes(vec![]))
        }
        Collective::SendReceive { .. } => unreachable!("a message is no call"),
    }
}

/// Divides a tensor into chunks that differ by at most one element.
fn divide(tensor: &[u8], chunks: u32, size: usize) -> Vec<Vec<u8>> {
    let (elements, chunks) = (tensor.len() / size, chunks as usize);
    let mut rest = tensor;
    (0..chunks)
        .map(|chunk| {
            let length = elements / chunks + usize::from(chunk < elements % chunks);
            let (first, others) = rest.split_at(length * size);
            rest = others;
            first.to_vec()
        })
        .collect()
}
