//! The vocabulary of a schedule: buffers, slots, steps, and one rank's program.

use std::collections::HashMap;
use std::fmt;

/// A rank within the group that executes a schedule.
pub type Rank = u32;

/// The position of a step in its rank's [`Program`].
pub type StepIndex = u32;

/// Where a chunk lives on a rank.
///
/// All-reduce, reduce and broadcast work in place: they know only [`Buffer::Output`], which holds
/// the rank's own contribution when the program starts. (For reduce, ranks other than the root
/// never write to it.) The other collectives never write to [`Buffer::Input`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Buffer {
    /// What the caller contributes, read only.
    Input,
    /// Where the caller finds the result.
    Output,
    /// Room of the engine's own, a few tiles for each chunk, whatever the chunk's size. Each
    /// scratch chunk is filled by one step; steps that write it later also read it.
    Scratch,
}

/// One chunk of one buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot {
    /// The buffer.
    pub buffer: Buffer,
    /// The index of the chunk within it.
    pub chunk: u32,
}

/// What a step does with one chunk. The engine runs each step tile by tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StepKind {
    /// Send a chunk. The k-th send from a to b is received by b's k-th receive from a.
    Send {
        /// The receiving rank.
        to: Rank,
        /// What is sent.
        source: Slot,
    },
    /// Receive a chunk: `destination = received`.
    Receive {
        /// The sending rank.
        from: Rank,
        /// What is overwritten.
        destination: Slot,
    },
    /// Receive and reduce: `destination = local ⊕ received`. The slots may be the same.
    ReceiveReduce {
        /// The sending rank.
        from: Rank,
        /// The operand that is already here.
        local: Slot,
        /// What is overwritten.
        destination: Slot,
        /// Whether this completes the reduction (an average divides here).
        last: bool,
    },
    /// Reduce two local chunks: `destination = local ⊕ source`.
    Reduce {
        /// The second operand.
        source: Slot,
        /// The first operand.
        local: Slot,
        /// What is overwritten.
        destination: Slot,
        /// Whether this completes the reduction (an average divides here).
        last: bool,
    },
    /// Copy a local chunk: `destination = source`.
    Copy {
        /// What is read.
        source: Slot,
        /// What is overwritten.
        destination: Slot,
    },
}

impl Slot {
    /// A chunk of the input.
    pub const fn input(chunk: u32) -> Self {
        Slot { buffer: Buffer::Input, chunk }
    }

    /// A chunk of the output.
    pub const fn output(chunk: u32) -> Self {
        Slot { buffer: Buffer::Output, chunk }
    }
}

impl fmt::Display for Slot {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let buffer = match self.buffer {
            Buffer::Input => "input",
            Buffer::Output => "output",
            Buffer::Scratch => "scratch",
        };
        write!(formatter, "{buffer}[{}]", self.chunk)
    }
}

impl fmt::Display for StepKind {
    /// One line: `receive from 3, output[1] = output[1] + received (last)`.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = |last: bool| if last { " (last)" } else { "" };
        match *self {
            StepKind::Send { to, source } => write!(formatter, "send {source} to {to}"),
            StepKind::Receive { from, destination } => {
                write!(formatter, "receive from {from}, {destination} = received")
            }
            StepKind::ReceiveReduce { from, local, destination, last } => write!(
                formatter,
                "receive from {from}, {destination} = {local} + received{}",
                mark(last)
            ),
            StepKind::Reduce { source, local, destination, last } => {
                write!(formatter, "reduce {destination} = {local} + {source}{}", mark(last))
            }
            StepKind::Copy { source, destination } => {
                write!(formatter, "copy {destination} = {source}")
            }
        }
    }
}

impl StepKind {
    /// The slots that the step reads.
    pub fn reads(&self) -> impl Iterator<Item = Slot> {
        let (first, second) = match *self {
            StepKind::Send { source, .. } | StepKind::Copy { source, .. } => (Some(source), None),
            StepKind::Receive { .. } => (None, None),
            StepKind::ReceiveReduce { local, .. } => (Some(local), None),
            StepKind::Reduce { source, local, .. } => (Some(local), Some(source)),
        };
        first.into_iter().chain(second)
    }

    /// The slot that the step overwrites, if any.
    pub fn writes(&self) -> Option<Slot> {
        match *self {
            StepKind::Send { .. } => None,
            StepKind::Receive { destination, .. }
            | StepKind::ReceiveReduce { destination, .. }
            | StepKind::Reduce { destination, .. }
            | StepKind::Copy { destination, .. } => Some(destination),
        }
    }

    /// The rank that this step receives from, if it receives.
    pub fn receives_from(&self) -> Option<Rank> {
        match *self {
            StepKind::Receive { from, .. } | StepKind::ReceiveReduce { from, .. } => Some(from),
            _ => None,
        }
    }

    /// The rank that this step sends to, if it sends.
    pub fn sends_to(&self) -> Option<Rank> {
        match *self {
            StepKind::Send { to, .. } => Some(to),
            _ => None,
        }
    }
}

/// A step and the steps of the same rank that must come before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// What it does.
    pub kind: StepKind,
    /// Steps whose tile *t* must be done before this step's tile *t* may run, sorted.
    ///
    /// All of them touch a chunk of the same length as this step's.
    pub after: Vec<StepIndex>,
}

/// What one rank does in a schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The rank that runs it.
    pub rank: Rank,
    /// The steps. Steps to or from one peer start in this order; others only as `after` demands.
    pub steps: Vec<Step>,
    /// Number of chunks in [`Buffer::Input`] (0 where the collective works in place).
    pub input_chunks: u32,
    /// Number of chunks in [`Buffer::Output`].
    pub output_chunks: u32,
    /// For each chunk of [`Buffer::Scratch`], the input or output slot whose length it has.
    pub scratch: Vec<Slot>,
    /// Where the algorithm tells hosts apart, the other ranks of this rank's host, sorted: what
    /// goes to and comes from them does not cross the network and is not worth a codec.
    pub same_host: Vec<Rank>,
}

/// Collects the steps of one rank in program order and derives their dependencies.
///
/// A step depends on the last writer of each slot it reads (read after write), and, for the slot
/// it writes, on every reader since the last writer (write after read) or, where nothing has read
/// the slot since, on the last writer itself (write after write).
#[derive(Debug)]
pub struct ProgramBuilder {
    program: Program,
    last_writer: HashMap<Slot, StepIndex>,
    readers: HashMap<Slot, Vec<StepIndex>>,
}

impl ProgramBuilder {
    /// Starts an empty program.
    pub fn new(rank: Rank, input_chunks: u32, output_chunks: u32) -> Self {
        let program = Program {
            rank,
            steps: Vec::new(),
            input_chunks,
            output_chunks,
            scratch: Vec::new(),
            same_host: Vec::new(),
        };
        Self { program, last_writer: Default::default(), readers: Default::default() }
    }

    /// Adds a scratch chunk as long as `like`.
    pub fn scratch(&mut self, like: Slot) -> Slot {
        self.program.scratch.push(like);
        Slot { buffer: Buffer::Scratch, chunk: self.program.scratch.len() as u32 - 1 }
    }

    /// Says which ranks share the host of this one, in ascending order.
    pub fn same_host(&mut self, ranks: Vec<Rank>) {
        self.program.same_host = ranks;
    }

    /// The first send that reads what a slot holds now, if there is one.
    pub fn first_send_of(&self, slot: Slot) -> Option<StepIndex> {
        let readers = self.readers.get(&slot)?.iter().copied();
        let mut sends =
            readers.filter(|reader| self.program.steps[*reader as usize].kind.sends_to().is_some());
        sends.next()
    }

    /// Appends a step.
    pub fn push(&mut self, kind: StepKind) -> StepIndex {
        self.push_after(kind, None)
    }

    /// Appends a step that also waits for an earlier one, for a reason that slots don't show.
    pub fn push_after(&mut self, kind: StepKind, earlier: Option<StepIndex>) -> StepIndex {
        let index = self.program.steps.len() as StepIndex;
        let mut after: Vec<StepIndex> =
            kind.reads().filter_map(|slot| self.last_writer.get(&slot).copied()).collect();
        after.extend(earlier);
        if let Some(slot) = kind.writes() {
            match self.readers.remove(&slot) {
                Some(readers) => after.extend(readers),
                None => after.extend(self.last_writer.get(&slot)),
            }
        }
        for slot in kind.reads() {
            self.readers.entry(slot).or_default().push(index);
        }
        if let Some(slot) = kind.writes() {
            self.last_writer.insert(slot, index);
            self.readers.remove(&slot);
        }
        after.sort_unstable();
        after.dedup();
        self.program.steps.push(Step { kind, after });
        index
    }

    /// The finished program.
    pub fn finish(self) -> Program {
        self.program
    }
}
