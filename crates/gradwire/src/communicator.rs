//! Groups of ranks and the operations on them.

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gradwire_codec::Codec;
use gradwire_core::{ANY_SOURCE, Descriptor, Plan};
use gradwire_reduce::{DataType, ReduceOp, Reduction};
use gradwire_schedule::{
    Algorithm, Buffer, Collective, Hosts, Program, ProgramBuilder, Slot, StepKind,
};
use rustc_hash::FxHasher;

use crate::driver::Start;
use crate::engine::Shared;
use crate::memory::{Element, Memory};
use crate::{Error, Handle};

/// Plans that a group keeps for operations of the same shape.
const MAX_PLANS: usize = 256;

/// An operation to be started.
///
/// What `input` and `output` hold depends on the collective; a list may be the chunks in rank order
/// or one range, which is then divided evenly:
///
/// | collective | input | output |
/// |---|---|---|
/// | all-reduce, reduce, broadcast | nothing | the tensor, in place |
/// | reduce-scatter | a chunk for each rank | one chunk |
/// | all-gather | one chunk | a chunk for each rank |
/// | gather | one chunk | a chunk for each rank, at the root |
/// | scatter | a chunk for each rank, at the root | one chunk |
/// | all-to-all | a chunk for each rank | a chunk for each rank |
/// | barrier | nothing | nothing |
/// | send, receive | one chunk at the sender | one chunk at the receiver |
#[derive(Clone, Debug)]
pub struct Request {
    /// What to do. Roots and ends are ranks of the group.
    pub collective: Collective,
    /// Type of the elements.
    pub dtype: DataType,
    /// Operator, where the collective reduces.
    pub op: ReduceOp,
    /// What this rank contributes.
    pub input: Vec<Memory>,
    /// Where this rank finds the result.
    pub output: Vec<Memory>,
    /// Tells point-to-point messages apart.
    pub tag: u32,
    /// How long the operation may take; the group's timeout if `None`.
    pub timeout: Option<Duration>,
    /// A receive takes the next message with its tag from any rank; `from` is not looked at.
    pub any_source: bool,
    /// Tiles of operations with a lower number overtake those with a higher one, on every wire; the
    /// oldest operation still gets its share. Each rank decides for itself.
    pub priority: u8,
    /// Bytes of a tile on the wire, a multiple of 64 up to the engine's `tile_bytes`, which it is
    /// if `None`. Small tiles let urgent operations overtake sooner. The same on all ranks.
    pub tile_bytes: Option<u32>,
    /// Algorithm; chosen by size and ranks if `None`. The same on all ranks.
    pub algorithm: Option<Algorithm>,
    /// How values travel, if not as they are: for all-reduce, reduce-scatter and all-gather of
    /// `float32`, with sums and averages. The same on all ranks, which all end with the same bits.
    pub codec: Option<Codec>,
    /// Where what the codec loses of this rank's contribution is to be left (error feedback adds
    /// it to the next one): nothing, or as much memory as is contributed, laid out like it. Like
    /// the codec, given on all ranks or on none.
    pub error: Vec<Memory>,
    /// What traces call it; what it does if `None`.
    pub label: Option<String>,
    /// The caller will wait for it at once, so nobody else needs to be woken to drive it.
    pub waits_at_once: bool,
}

impl Request {
    /// Of messages, unless they say otherwise: activations and their gradients are what a pipeline
    /// waits for, and buckets of gradients yield to them.
    pub const MESSAGE_PRIORITY: u8 = 64;
    /// Of collectives, unless they say otherwise.
    pub const COLLECTIVE_PRIORITY: u8 = 128;

    /// A request with no memory and defaults for the rest.
    pub fn new(collective: Collective, dtype: DataType, op: ReduceOp) -> Self {
        Request {
            collective,
            dtype,
            op,
            input: Vec::new(),
            output: Vec::new(),
            tag: 0,
            timeout: None,
            any_source: false,
            priority: match collective {
                Collective::SendReceive { .. } => Request::MESSAGE_PRIORITY,
                _ => Request::COLLECTIVE_PRIORITY,
            },
            tile_bytes: None,
            algorithm: None,
            codec: None,
            error: Vec::new(),
            label: None,
            waits_at_once: false,
        }
    }
}

/// A group of ranks. Clones are the same group; it is forgotten with the last of them.
#[derive(Clone, Debug)]
pub struct Communicator {
    pub(crate) group: Arc<Group>,
}

#[derive(Debug)]
pub(crate) struct Group {
    pub engine: Arc<Shared>,
    pub id: u64,
    pub members: Vec<u32>,
    /// Where the members are, as all of them know it alike.
    hosts: Hosts,
    rank: u32,
    timeout: Mutex<Duration>,
    /// Operations with a codec so far.
    coded_operations: AtomicU64,
    plans: Mutex<HashMap<PlanKey, Arc<Plan>, BuildHasherDefault<FxHasher>>>,
}

/// What a plan depends on within a group.
#[derive(Debug, PartialEq, Eq, Hash)]
struct PlanKey {
    descriptor: Descriptor,
    /// Lengths of the ranges of input and output as the caller gave them.
    input: Vec<usize>,
    output: Vec<usize>,
    tile_bytes: u32,
}

impl Group {
    /// Waits until the members have joined the job and it is known on which hosts they are.
    pub fn create(engine: &Arc<Shared>, name: &str, members: &[u32]) -> Result<Arc<Self>, Error> {
        let me = engine.config.rank;
        let Some(rank) = members.iter().position(|member| *member == me) else {
            return Err(Error::Request(format!("rank {me} is not in group '{name}' {members:?}")));
        };
        let world_size = engine.config.world_size;
        if let Some(member) = members.iter().find(|member| **member >= world_size) {
            let text = format!("group '{name}' names rank {member}, the world has {world_size}");
            return Err(Error::Request(text));
        }
        let mut sorted = members.to_vec();
        sorted.sort_unstable();
        if sorted.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(Error::Request(format!("group '{name}' names a rank twice: {members:?}")));
        }
        let generation = engine.next_generation(name, members);
        let hasher = BuildHasherDefault::<FxHasher>::default();
        let id = hasher.hash_one((name, members, generation));
        engine.with_driver(|driver| driver.core().create_group(id, name, members));
        let mut group = Group {
            engine: engine.clone(),
            id,
            members: members.to_vec(),
            hosts: Hosts::apart(members.len() as u32),
            rank: rank as u32,
            timeout: Mutex::new(engine.config.timeout),
            coded_operations: AtomicU64::new(0),
            plans: Mutex::default(),
        };
        group.hosts = engine.hosts_of(id, rank, members)?;
        Ok(Arc::new(group))
    }

    fn size(&self) -> usize {
        self.members.len()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.engine.with_driver(|driver| driver.core().remove_group(self.id));
    }
}

impl Communicator {
    /// This process's rank in the group.
    pub fn rank(&self) -> u32 {
        self.group.rank
    }

    /// Number of ranks in the group.
    pub fn size(&self) -> u32 {
        self.group.size() as u32
    }

    /// World ranks of the members, by group rank.
    pub fn members(&self) -> &[u32] {
        &self.group.members
    }

    /// How long an operation may take if it does not say itself.
    pub fn timeout(&self) -> Duration {
        *self.group.timeout.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets how long operations submitted from now on may take.
    pub fn set_timeout(&self, timeout: Duration) {
        *self.group.timeout.lock().unwrap_or_else(PoisonError::into_inner) = timeout;
    }

    /// Ends the group on all its ranks: everything in flight fails with the reason, and nothing
    /// can be started on it any more.
    pub fn abort(&self, reason: &str) {
        self.group.engine.with_driver(|driver| driver.abort(self.group.id, reason));
        self.group.engine.drive_soon();
    }

    /// Starts an operation on the caller's memory. Waits while as many operations are in flight as
    /// the engine allows (1024), driving them.
    ///
    /// # Errors
    /// [`Error::Request`] for what can't be, [`Error::Group`] if the group has failed before.
    ///
    /// # Safety
    /// All memory that the request names must stay valid until the handle is done, and until then
    /// nobody else may write to the input, or read or write the output. Pieces of the output may
    /// not overlap each other, nor the input, except that a rank's own piece of the output may be
    /// its (piece of the) input.
    pub unsafe fn submit(&self, request: Request) -> Result<Handle, Error> {
        let group = &self.group;
        group.engine.check_running()?;
        let timeout = request.timeout.unwrap_or_else(|| self.timeout());
        let ready = group.prepare(&request)?;
        let waits_at_once = request.waits_at_once;
        let descriptor = ready.plan.descriptor;
        let start = Start {
            group: group.id,
            peers: group.peers_of(&ready.plan),
            plan: ready.plan,
            tag: request.tag,
            timeout,
            priority: request.priority,
            input: ready.input,
            output: ready.output,
            reduction: ready.reduction,
            finish: (request.op == ReduceOp::Average).then_some(group.size() as u32),
            error: ready.error,
            seed: ready.seed,
            label: request.label,
        };
        let state = group.engine.submit(start)?;
        if !waits_at_once && !state.is_done() {
            group.engine.drive_soon();
        }
        Ok(Handle { state, group: group.clone(), what: descriptor })
    }

    fn run(&self, mut request: Request) -> Result<(), Error> {
        request.waits_at_once = true;
        // SAFETY: the callers below hold the borrows of all memory until this returns, and this
        // returns only when the operation is done.
        let handle = unsafe { self.submit(request)? };
        handle.wait(None)
    }

    /// Replaces each element by the reduction over all ranks.
    pub fn all_reduce<T: Element>(&self, tensor: &mut [T], op: ReduceOp) -> Result<(), Error> {
        let mut request = Request::new(Collective::AllReduce, T::DTYPE, op);
        request.output = vec![Memory::of(tensor)];
        self.run(request)
    }

    /// Replaces the tensor on all ranks by the root's.
    pub fn broadcast<T: Element>(&self, tensor: &mut [T], root: u32) -> Result<(), Error> {
        let mut request = Request::new(Collective::Broadcast { root }, T::DTYPE, ReduceOp::Sum);
        request.output = vec![Memory::of(tensor)];
        self.run(request)
    }

    /// Concatenates the ranks' tensors, which all have the same length.
    pub fn all_gather<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<(), Error> {
        let mut request = Request::new(Collective::AllGather, T::DTYPE, ReduceOp::Sum);
        request.input = vec![Memory::read_only(input)];
        request.output = vec![Memory::of(output)];
        self.run(request)
    }

    /// Reduces over all ranks and leaves each rank its part.
    pub fn reduce_scatter<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        op: ReduceOp,
    ) -> Result<(), Error> {
        let mut request = Request::new(Collective::ReduceScatter, T::DTYPE, op);
        request.input = vec![Memory::read_only(input)];
        request.output = vec![Memory::of(output)];
        self.run(request)
    }

    /// Sends a tensor to another rank, which must receive it.
    pub fn send<T: Element>(&self, tensor: &[T], to: u32, tag: u32) -> Result<(), Error> {
        let collective = Collective::SendReceive { from: self.rank(), to };
        let mut request = Request::new(collective, T::DTYPE, ReduceOp::Sum);
        request.input = vec![Memory::read_only(tensor)];
        request.tag = tag;
        self.run(request)
    }

    /// Receives a tensor that another rank sends.
    pub fn receive<T: Element>(&self, tensor: &mut [T], from: u32, tag: u32) -> Result<(), Error> {
        let collective = Collective::SendReceive { from, to: self.rank() };
        let mut request = Request::new(collective, T::DTYPE, ReduceOp::Sum);
        request.output = vec![Memory::of(tensor)];
        request.tag = tag;
        self.run(request)
    }

    /// Returns when all ranks have called it.
    pub fn barrier(&self) -> Result<(), Error> {
        self.run(Request::new(Collective::Barrier, DataType::U8, ReduceOp::Sum))
    }
}

/// A request, checked, with its memory in chunks.
struct Ready {
    plan: Arc<Plan>,
    input: Vec<Memory>,
    output: Vec<Memory>,
    reduction: Option<Reduction>,
    error: Vec<Memory>,
    seed: u64,
}

impl Group {
    fn prepare(&self, request: &Request) -> Result<Ready, Error> {
        self.check_ranks(request)?;
        check_codec(request)?;
        self.check_tile(request)?;
        let element = request.dtype.size_bytes();
        for memory in request.input.iter().chain(&request.output) {
            if !memory.bytes.is_multiple_of(element) {
                return Err(Error::Request(format!(
                    "{} bytes are no whole number of {} elements",
                    memory.bytes, request.dtype
                )));
            }
        }
        let reduces = matches!(
            request.collective,
            Collective::AllReduce | Collective::Reduce { .. } | Collective::ReduceScatter
        );
        let reduction = reduces
            .then(|| Reduction::new(request.dtype, request.op))
            .transpose()
            .map_err(|error| Error::Request(error.to_string()))?;
        let (input, output) = self.pieces(request)?;
        let plan = self.plan(request, &input, &output)?;
        let in_place = is_in_place(request.collective);
        let output = match output.first() {
            Some(tensor) if in_place => tensor.divide(plan.output_bytes.len(), element),
            _ => output,
        };
        let error = self.error_pieces(request, &plan, &input, &output)?;
        let seed = match request.codec {
            None => 0,
            // Of a number that grows with each such operation, and so the same from run to run.
            Some(_) => {
                let count = self.coded_operations.fetch_add(1, Ordering::Relaxed);
                BuildHasherDefault::<FxHasher>::default().hash_one((count, self.rank))
            }
        };
        Ok(Ready { plan, input, output, reduction, error, seed })
    }

    /// The memory for what a codec loses, divided like what the rank contributes; where nothing of
    /// it is encoded, the loss is zero at once.
    fn error_pieces(
        &self,
        request: &Request,
        plan: &Plan,
        input: &[Memory],
        output: &[Memory],
    ) -> Result<Vec<Memory>, Error> {
        let contributed = if is_in_place(request.collective) { output } else { input };
        let lengths: Vec<usize> = contributed.iter().map(|piece| piece.bytes).collect();
        let total: usize = lengths.iter().sum();
        let pieces = match request.error[..] {
            [] => return Ok(Vec::new()),
            [whole] if whole.bytes == total => whole.split(&lengths),
            _ if request.error.iter().map(|piece| piece.bytes).eq(lengths) => request.error.clone(),
            _ => {
                return Err(Error::Request(format!(
                    "{}: the memory for the codec's error is not laid out like the {total} bytes that are contributed",
                    request.collective.name()
                )));
            }
        };
        let ranges = contributed.iter().chain(output).map(|memory| (memory, false));
        let ranges = ranges.chain(pieces.iter().map(|memory| (memory, true)));
        if first_overlap(ranges.filter(|(memory, _)| memory.bytes > 0)).is_some() {
            let name = request.collective.name();
            let text =
                format!("{name}: the memory for the codec's error is used for something else too");
            return Err(Error::Request(text));
        }
        for (memory, _) in pieces.iter().zip(&plan.is_rounded).filter(|(_, rounded)| !**rounded) {
            // SAFETY: the operation's own memory, by the promise of `Communicator::submit`.
            unsafe { std::ptr::write_bytes(memory.pointer, 0, memory.bytes) };
        }
        Ok(pieces)
    }

    fn check_tile(&self, request: &Request) -> Result<(), Error> {
        let most = self.engine.config.tile_bytes;
        match request.tile_bytes {
            Some(bytes) if bytes == 0 || bytes > most || !bytes.is_multiple_of(64) => {
                Err(Error::Request(format!(
                    "a tile of {bytes} bytes: it must be a multiple of 64 up to {most} (GRADWIRE_TILE_BYTES)"
                )))
            }
            _ => Ok(()),
        }
    }

    fn check_ranks(&self, request: &Request) -> Result<(), Error> {
        let size = self.size() as u32;
        let name = request.collective.name();
        let (ranks, me) = match request.collective {
            Collective::Reduce { root }
            | Collective::Broadcast { root }
            | Collective::Gather { root }
            | Collective::Scatter { root } => (vec![root], true),
            Collective::SendReceive { to, .. } if request.any_source => (vec![to], to == self.rank),
            Collective::SendReceive { from, to } => {
                (vec![from, to], (from == self.rank) != (to == self.rank))
            }
            _ => (vec![], true),
        };
        if let Some(rank) = ranks.iter().find(|rank| **rank >= size) {
            return Err(Error::Request(format!(
                "{name}: there is no rank {rank} in a group of {size}"
            )));
        }
        if !me {
            return Err(Error::Request(format!(
                "{name}: exactly one of the two ends must be this rank ({})",
                self.rank
            )));
        }
        Ok(())
    }

    /// The ranges of a request, one for each chunk (or one for all where it works in place).
    fn pieces(&self, request: &Request) -> Result<(Vec<Memory>, Vec<Memory>), Error> {
        let (n, me) = (self.size(), self.rank);
        let (input, output) = match request.collective {
            Collective::AllReduce | Collective::Reduce { .. } | Collective::Broadcast { .. } => {
                (0, 1)
            }
            Collective::Barrier => return Ok((Vec::new(), vec![Memory::EMPTY])),
            Collective::ReduceScatter => (n, 1),
            Collective::AllGather => (1, n),
            Collective::AllToAll => (n, n),
            Collective::Gather { root } => (1, if root == me { n } else { 0 }),
            Collective::Scatter { root } => (if root == me { n } else { 0 }, 1),
            Collective::SendReceive { .. } if request.any_source => (0, 1),
            Collective::SendReceive { from, .. } => {
                if from == me {
                    (1, 0)
                } else {
                    (0, 1)
                }
            }
        };
        let divide = |what: &str, given: &[Memory], wanted: usize| {
            if given.len() == wanted {
                return Ok(given.to_vec());
            }
            let even = match given {
                [whole] if wanted > 0 => whole.divide_evenly(wanted, request.dtype.size_bytes()),
                _ => None,
            };
            even.ok_or_else(|| {
                let total: usize = given.iter().map(|memory| memory.bytes).sum();
                Error::Request(format!(
                    "{}: {what} of {} ranges with {total} bytes can't be divided into {wanted} chunks of {} elements",
                    request.collective.name(), given.len(), request.dtype
                ))
            })
        };
        let input = divide("input", &request.input, input)?;
        let output = divide("output", &request.output, output)?;
        self.check_overlaps(request.collective, &input, &output)?;
        Ok((input, output))
    }

    /// Output may overlap neither itself nor input, but for this rank's own piece of both.
    fn check_overlaps(
        &self,
        collective: Collective,
        input: &[Memory],
        output: &[Memory],
    ) -> Result<(), Error> {
        if input.len() + output.len() < 2 {
            return Ok(());
        }
        let own = |pieces: &[Memory]| if pieces.len() == 1 { 0 } else { self.rank as usize };
        let shared = (input.get(own(input)) == output.get(own(output))).then_some(own(input));
        let inputs = input.iter().enumerate().filter(|(piece, _)| Some(*piece) != shared);
        let inputs = inputs.map(|(_, memory)| (memory, false));
        let ranges = inputs.chain(output.iter().map(|memory| (memory, true)));
        match first_overlap(ranges.filter(|(memory, _)| memory.bytes > 0)) {
            None => Ok(()),
            Some(with) => Err(Error::Request(format!("{}: {with}", collective.name()))),
        }
    }

    fn plan(
        &self,
        request: &Request,
        input: &[Memory],
        output: &[Memory],
    ) -> Result<Arc<Plan>, Error> {
        let lengths = |pieces: &[Memory]| pieces.iter().map(|piece| piece.bytes).collect();
        let descriptor = self.descriptor(request, input, output);
        let most = self.engine.config.tile_bytes;
        let tile_bytes = tile_in_memory(request.codec, request.tile_bytes.unwrap_or(most), most);
        let (input, output) = (lengths(input), lengths(output));
        let key = PlanKey { descriptor, input, output, tile_bytes };
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(plan) = plans.get(&key) {
            return Ok(plan.clone());
        }
        let plan = self.make_plan(request, &key)?;
        if plans.len() >= MAX_PLANS {
            plans.clear();
        }
        plans.insert(key, plan.clone());
        Ok(plan)
    }

    fn descriptor(&self, request: &Request, input: &[Memory], output: &[Memory]) -> Descriptor {
        let bytes = |pieces: &[Memory]| pieces.iter().map(|piece| piece.bytes).sum::<usize>();
        let even = |pieces: &[Memory]| pieces.windows(2).all(|pair| pair[0].bytes == pair[1].bytes);
        let whole = bytes(input).max(bytes(output));
        // What all ranks know alike; where they may rightly differ, nothing.
        let count = match request.collective {
            Collective::AllGather if !even(output) => 0,
            Collective::ReduceScatter if !even(input) => 0,
            Collective::Gather { .. } => bytes(input),
            Collective::Scatter { .. } => bytes(output),
            Collective::AllToAll => 0,
            _ => whole,
        };
        let size = request.dtype.size_bytes();
        let wanted = request.algorithm.or(self.engine.config.algorithm);
        let algorithm = match request.collective {
            Collective::SendReceive { .. } => Algorithm::Direct,
            collective if request.codec.is_some() => wanted
                .filter(|algorithm| algorithm.supports(collective))
                .filter(|algorithm| may_carry(*algorithm, request))
                .unwrap_or_else(|| Algorithm::choose_for_codec(&self.hosts)),
            collective => {
                wanted.filter(|algorithm| algorithm.supports(collective)).unwrap_or_else(|| {
                    Algorithm::choose(
                        collective,
                        whole,
                        &self.hosts,
                        self.engine.config.is_on_network(),
                    )
                })
            }
        };
        let collective = match request.collective {
            Collective::SendReceive { to, .. } if request.any_source => {
                Collective::SendReceive { from: ANY_SOURCE, to }
            }
            other => other,
        };
        // An operator that is not used must not make operations differ.
        let op = match request.collective {
            Collective::AllReduce | Collective::Reduce { .. } | Collective::ReduceScatter => {
                request.op
            }
            _ => ReduceOp::Sum,
        };
        let count = (count / size) as u64;
        Descriptor { collective, algorithm, dtype: request.dtype, op, codec: request.codec, count }
    }

    fn make_plan(&self, request: &Request, key: &PlanKey) -> Result<Arc<Plan>, Error> {
        let descriptor = key.descriptor;
        let program = match descriptor.collective {
            Collective::SendReceive { from, to } => point_to_point(self.rank, from, to),
            collective => descriptor.algorithm.program_on(collective, self.rank, &self.hosts)?,
        };
        let to_u64 = |lengths: &[usize]| lengths.iter().map(|it| *it as u64).collect();
        let output = if is_in_place(descriptor.collective) {
            let whole = Memory { pointer: std::ptr::null_mut(), bytes: key.output[0] };
            let chunks = program.output_chunks as usize;
            whole
                .divide(chunks, request.dtype.size_bytes())
                .iter()
                .map(|chunk| chunk.bytes as u64)
                .collect()
        } else {
            to_u64(&key.output)
        };
        Ok(Plan::new(descriptor, &program, to_u64(&key.input), output, key.tile_bytes)?)
    }

    /// World ranks of a plan's peers, as far as they are known.
    fn peers_of(&self, plan: &Plan) -> Vec<u32> {
        plan.peers.iter().filter_map(|peer| self.members.get(peer.rank as usize).copied()).collect()
    }
}

/// Bytes in memory, at most `most`, of a tile of which a codec leaves up to `wire_bytes`: a message
/// costs the same whatever is in it, but what is encoded at once delays its first byte.
fn tile_in_memory(codec: Option<Codec>, wire_bytes: u32, most: u32) -> u32 {
    let Some(codec) = codec else { return wire_bytes };
    let fits = |bytes: u32| codec.encoded_bytes(bytes as usize / 4) <= wire_bytes as usize;
    let sizes = (1..=most / WHOLE_BYTES).rev().map(|wholes| wholes * WHOLE_BYTES);
    sizes.take_while(|bytes| *bytes > wire_bytes).find(|bytes| fits(*bytes)).unwrap_or(wire_bytes)
}

/// A multiple of what any codec treats as one.
const WHOLE_BYTES: u32 = 16 << 10;

/// Whether an algorithm may carry out a request with a codec: it must encode twice at any number of
/// ranks, unless values may be rounded again at every hop.
fn may_carry(algorithm: Algorithm, request: &Request) -> bool {
    match algorithm {
        Algorithm::Direct | Algorithm::Hierarchical => true,
        _ => request.error.is_empty() && request.codec.is_some_and(Codec::is_linear),
    }
}

/// Whether a codec can do what is asked for.
fn check_codec(request: &Request) -> Result<(), Error> {
    let Some(codec) = request.codec else {
        return match request.error[..] {
            [] => Ok(()),
            _ => Err(Error::Request("there is no error to be kept without a codec".to_owned())),
        };
    };
    let name = request.collective.name();
    let problem = match (request.collective, request.op) {
        (Collective::AllReduce | Collective::ReduceScatter, ReduceOp::Sum | ReduceOp::Average)
        | (Collective::AllGather, _)
            if request.dtype == DataType::F32 =>
        {
            return Ok(());
        }
        (Collective::AllReduce | Collective::ReduceScatter | Collective::AllGather, _)
            if request.dtype != DataType::F32 =>
        {
            format!("codecs work on float32, not on {}", request.dtype)
        }
        (Collective::AllReduce | Collective::ReduceScatter, op) => {
            format!("codecs know sums and averages, not {}", op.name())
        }
        _ => "codecs are for all_reduce, reduce_scatter and all_gather".to_owned(),
    };
    Err(Error::Request(format!("{name} with codec {codec}: {problem}")))
}

/// The first overlap of ranges of which one at least is output (`true`), in words.
fn first_overlap<'a>(ranges: impl Iterator<Item = (&'a Memory, bool)>) -> Option<&'static str> {
    let mut ranges: Vec<(usize, usize, bool)> = ranges
        .map(|(memory, is_output)| {
            let start = memory.pointer as usize;
            (start, start.saturating_add(memory.bytes), is_output)
        })
        .collect();
    ranges.sort_unstable();
    let (mut inputs_end, mut outputs_end) = (0, 0);
    for (start, end, is_output) in ranges {
        if is_output && start < outputs_end {
            return Some("pieces of the output overlap");
        }
        if start < if is_output { inputs_end } else { outputs_end } {
            return Some("output overlaps with input");
        }
        let reached = if is_output { &mut outputs_end } else { &mut inputs_end };
        *reached = end.max(*reached);
    }
    None
}

fn is_in_place(collective: Collective) -> bool {
    matches!(
        collective,
        Collective::AllReduce
            | Collective::Reduce { .. }
            | Collective::Broadcast { .. }
            | Collective::Barrier
    )
}

/// One step; its other end may be unknown.
fn point_to_point(rank: u32, from: u32, to: u32) -> Program {
    let chunk = |buffer| Slot { buffer, chunk: 0 };
    if from == rank {
        let mut program = ProgramBuilder::new(rank, 1, 0);
        program.push(StepKind::Send { to, source: chunk(Buffer::Input) });
        program.finish()
    } else {
        let mut program = ProgramBuilder::new(rank, 0, 1);
        program.push(StepKind::Receive { from, destination: chunk(Buffer::Output) });
        program.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoded_tiles_fill_a_message() {
        const MOST: u32 = 128 << 10;
        assert_eq!(tile_in_memory(None, 32 << 10, MOST), 32 << 10);
        for (name, wire, expected) in [
            ("bf16", 32 << 10, 64 << 10),
            ("int8", 32 << 10, 112 << 10),
            ("int4", 32 << 10, MOST),
            ("int4", 64 << 10, MOST),
            ("int4", MOST, MOST),
            ("int4", 64, 64),
        ] {
            let codec: Codec = name.parse().unwrap();
            let bytes = tile_in_memory(Some(codec), wire, MOST);
            assert_eq!(bytes, expected, "{name} in {wire}");
        }
    }
}
