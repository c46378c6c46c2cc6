//! Executes a schedule on expressions instead of tensors.

use std::collections::HashMap;

use super::ScheduleFault;
use crate::flow::{Flow, Node, Numbering};
use crate::{Buffer, Collective, Program, Rank, Schedule, Slot, StepKind};

/// The number of an expression. Equal expressions have equal numbers.
pub(super) type Value = u32;

/// A set of ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RankSet(Box<[u64]>);

impl RankSet {
    pub(super) fn of(rank: Rank, ranks: Rank) -> Self {
        let mut words = vec![0; ranks.div_ceil(64) as usize];
        words[rank as usize / 64] = 1 << (rank % 64);
        Self(words.into_boxed_slice())
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.0.iter_mut().zip(&other.0).for_each(|(word, other)| *word |= other);
    }

    fn common(&self, other: &Self) -> Option<Rank> {
        let position = self.0.iter().zip(&other.0).position(|(word, other)| word & other != 0)?;
        let word = self.0[position] & other.0[position];
        Some(position as Rank * 64 + word.trailing_zeros())
    }

    /// The members, smallest first.
    pub(super) fn members(&self) -> impl Iterator<Item = Rank> {
        (0..).zip(&self.0).flat_map(|(position, &word)| {
            (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| position * 64 + bit)
        })
    }

    pub(super) fn len(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }
}

/// What an expression is made of: one chunk, contributed by these ranks.
#[derive(Debug)]
pub(super) struct Content {
    pub(super) chunk: u32,
    pub(super) ranks: RankSet,
}

/// All expressions that came up. A reduction is known by its two sides, whichever is first.
#[derive(Default)]
pub(super) struct Expressions {
    contents: Vec<Content>,
    contributions: HashMap<(Rank, u32), Value>,
    reductions: HashMap<(Value, Value), Value>,
}

impl Expressions {
    pub(super) fn content(&self, value: Value) -> &Content {
        &self.contents[value as usize]
    }

    fn contribution(&mut self, rank: Rank, chunk: u32, ranks: Rank) -> Value {
        *self.contributions.entry((rank, chunk)).or_insert_with(|| {
            self.contents.push(Content { chunk, ranks: RankSet::of(rank, ranks) });
            self.contents.len() as Value - 1
        })
    }

    fn reduction(&mut self, first: Value, second: Value) -> Value {
        let key = (first.min(second), first.max(second));
        *self.reductions.entry(key).or_insert_with(|| {
            let chunk = self.contents[first as usize].chunk;
            let mut ranks = self.contents[first as usize].ranks.clone();
            ranks.add(&self.contents[second as usize].ranks);
            self.contents.push(Content { chunk, ranks });
            self.contents.len() as Value - 1
        })
    }
}

/// What a rank's buffers hold.
struct Memory {
    input: Vec<Option<Value>>,
    output: Vec<Option<Value>>,
    scratch: Vec<Option<Value>>,
}

impl Memory {
    fn buffer(&mut self, buffer: Buffer) -> &mut Vec<Option<Value>> {
        match buffer {
            Buffer::Input => &mut self.input,
            Buffer::Output => &mut self.output,
            Buffer::Scratch => &mut self.scratch,
        }
    }

    fn at(&mut self, slot: Slot) -> &mut Option<Value> {
        &mut self.buffer(slot.buffer)[slot.chunk as usize]
    }
}

/// What the schedule leaves behind.
pub(super) struct End {
    pub(super) expressions: Expressions,
    /// For each rank, what its output chunks hold.
    pub(super) outputs: Vec<Vec<Option<Value>>>,
}

struct Execution<'a> {
    schedule: &'a Schedule,
    expressions: Expressions,
    memories: Vec<Memory>,
}

/// Runs the steps in the flow's order. The structure has been checked.
pub(super) fn execute(schedule: &Schedule, flow: &Flow) -> Result<End, ScheduleFault> {
    let mut execution = Execution::new(schedule);
    let numbering = Numbering::new(schedule);
    let mut receiver = vec![None; numbering.len()];
    let mut arrived = vec![None; numbering.len()];
    for message in &flow.messages {
        receiver[numbering.number(message.send)] = Some(numbering.number(message.receive));
    }
    for &node in &flow.order {
        let number = numbering.number(node);
        let sent = execution.step(node, arrived[number])?;
        if let Some(receiver) = receiver[number] {
            arrived[receiver] = sent;
        }
    }
    let outputs = execution.memories.into_iter().map(|memory| memory.output).collect();
    Ok(End { expressions: execution.expressions, outputs })
}

impl<'a> Execution<'a> {
    fn new(schedule: &'a Schedule) -> Self {
        let mut execution =
            Self { schedule, expressions: Expressions::default(), memories: Vec::new() };
        execution.memories =
            schedule.programs.iter().map(|program| execution.start(program)).collect();
        execution
    }

    /// The buffers hold the rank's contribution and nothing else.
    fn start(&mut self, program: &Program) -> Memory {
        let ranks = self.schedule.ranks();
        let mut memory = Memory {
            input: vec![None; program.input_chunks as usize],
            output: vec![None; program.output_chunks as usize],
            scratch: vec![None; program.scratch.len()],
        };
        let contributed = match self.schedule.collective {
            Collective::AllReduce | Collective::Reduce { .. } | Collective::Barrier => {
                Buffer::Output
            }
            Collective::Broadcast { root } if program.rank == root => Buffer::Output,
            _ => Buffer::Input,
        };
        for (chunk, value) in (0..).zip(memory.buffer(contributed)) {
            *value = Some(self.expressions.contribution(program.rank, chunk, ranks));
        }
        memory
    }

    /// Runs a step on what has arrived for it; returns what it sends.
    fn step(&mut self, node: Node, arrived: Option<Value>) -> Result<Option<Value>, ScheduleFault> {
        let program = &self.schedule.programs[node.rank as usize];
        let kind = program.steps[node.step as usize].kind;
        let Some(destination) = kind.writes() else {
            let sent = kind.reads().next().map(|slot| self.read(node, slot)).transpose()?;
            return Ok(sent);
        };
        let value = match kind {
            StepKind::Copy { source, .. } => Some(self.read(node, source)?),
            StepKind::Reduce { source, local, last, .. } => {
                let sides = (self.read(node, local)?, Some(self.read(node, source)?));
                Some(self.reduce(node, destination, sides, last)?)
            }
            StepKind::ReceiveReduce { local, last, .. } => {
                let sides = (self.read(node, local)?, arrived);
                Some(self.reduce(node, destination, sides, last)?)
            }
            StepKind::Receive { .. } | StepKind::Send { .. } => arrived,
        };
        *self.memories[node.rank as usize].at(destination) = value;
        Ok(None)
    }

    fn read(&mut self, node: Node, slot: Slot) -> Result<Value, ScheduleFault> {
        let Node { rank, step } = node;
        let value = *self.memories[rank as usize].at(slot);
        value.ok_or(ScheduleFault::Unwritten { rank, step, slot })
    }

    fn reduce(
        &mut self,
        node: Node,
        slot: Slot,
        (first, second): (Value, Option<Value>),
        last: bool,
    ) -> Result<Value, ScheduleFault> {
        let Node { rank, step } = node;
        if !self.schedule.collective.reduces() {
            return Err(ScheduleFault::Reduction { rank, step, slot });
        }
        let second = second.ok_or(ScheduleFault::Unwritten { rank, step, slot })?;
        let (left, right) = (self.expressions.content(first), self.expressions.content(second));
        if left.chunk != right.chunk {
            let (first, second) = (left.chunk, right.chunk);
            return Err(ScheduleFault::Mixed { rank, step, slot, first, second });
        }
        if let Some(contribution) = left.ranks.common(&right.ranks) {
            return Err(ScheduleFault::Twice { rank, step, slot, contribution });
        }
        let value = self.expressions.reduction(first, second);
        let complete = self.expressions.content(value).ranks.len() == self.schedule.ranks();
        match complete == last {
            true => Ok(value),
            false => Err(ScheduleFault::Last { rank, step, slot, complete }),
        }
    }
}
