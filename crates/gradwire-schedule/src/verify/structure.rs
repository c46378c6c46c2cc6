//! What can be checked without executing: shapes, slots, lengths, dependencies, peers.

use super::ScheduleFault;
use crate::flow::Flow;
use crate::{Buffer, Collective, Program, Rank, Schedule, Slot, Step, StepIndex};

pub(super) fn check(schedule: &Schedule) -> Result<(), ScheduleFault> {
    if schedule.programs.is_empty() {
        return Err(ScheduleFault::Empty);
    }
    let ranks = schedule.ranks();
    let named = match schedule.collective {
        Collective::SendReceive { from, to } => Some(from.max(to)),
        collective => collective.root(),
    };
    if let Some(rank) = named.filter(|&rank| rank >= ranks) {
        return Err(ScheduleFault::NoSuchRank { rank, ranks });
    }
    for (position, program) in (0..).zip(&schedule.programs) {
        if program.rank != position {
            return Err(ScheduleFault::Misplaced { position, rank: program.rank });
        }
        check_chunks(schedule, program)?;
        for (index, step) in (0..).zip(&program.steps) {
            check_step(schedule, program, index, step)?;
        }
        check_races(program)?;
    }
    Ok(())
}

/// The number of input and output chunks that a rank must have.
fn expected_chunks(schedule: &Schedule, rank: Rank) -> (u32, u32) {
    let ranks = schedule.ranks();
    match schedule.collective {
        Collective::AllReduce | Collective::Reduce { .. } | Collective::Broadcast { .. } => {
            (0, schedule.programs[0].output_chunks)
        }
        Collective::ReduceScatter => (ranks, 1),
        Collective::AllGather => (1, ranks),
        Collective::Gather { root } => (1, if rank == root { ranks } else { 0 }),
        Collective::Scatter { root } => (if rank == root { ranks } else { 0 }, 1),
        Collective::AllToAll => (ranks, ranks),
        Collective::Barrier => (0, 1),
        Collective::SendReceive { from, to } => ((rank == from).into(), (rank == to).into()),
    }
}

fn check_chunks(schedule: &Schedule, program: &Program) -> Result<(), ScheduleFault> {
    let rank = program.rank;
    let (input, output) = expected_chunks(schedule, rank);
    // A schedule without any chunk in place would prove nothing.
    let output = if schedule.collective.works_in_place() { output.max(1) } else { output };
    for (buffer, chunks, expected) in [
        (Buffer::Input, program.input_chunks, input),
        (Buffer::Output, program.output_chunks, output),
    ] {
        if chunks != expected {
            return Err(ScheduleFault::Chunks { rank, buffer, chunks, expected });
        }
    }
    for (chunk, &like) in (0..).zip(&program.scratch) {
        if like.buffer == Buffer::Scratch || !exists(program, like) {
            let slot = Slot { buffer: Buffer::Scratch, chunk };
            return Err(ScheduleFault::Scratch { rank, slot, like });
        }
    }
    Ok(())
}

fn exists(program: &Program, slot: Slot) -> bool {
    let chunks = match slot.buffer {
        Buffer::Input => program.input_chunks as usize,
        Buffer::Output => program.output_chunks as usize,
        Buffer::Scratch => program.scratch.len(),
    };
    (slot.chunk as usize) < chunks
}

fn check_step(
    schedule: &Schedule,
    program: &Program,
    step: StepIndex,
    body: &Step,
) -> Result<(), ScheduleFault> {
    let rank = program.rank;
    let slots = || body.kind.reads().chain(body.kind.writes());
    if let Some(slot) = slots().find(|&slot| !exists(program, slot)) {
        return Err(ScheduleFault::NoSuchSlot { rank, step, slot });
    }
    if let Some(slot) = body.kind.writes().filter(|slot| !writable(schedule, rank, *slot)) {
        return Err(ScheduleFault::ReadOnly { rank, step, slot });
    }
    let peer = body.kind.sends_to().or(body.kind.receives_from());
    if let Some(peer) = peer.filter(|&peer| peer == rank || peer >= schedule.ranks()) {
        return Err(ScheduleFault::Peer { rank, step, peer });
    }
    let out_of_order = body.after.windows(2).find(|pair| pair[0] >= pair[1]).map(|pair| pair[1]);
    let not_earlier = body.after.iter().copied().find(|&after| after >= step);
    if let Some(after) = out_of_order.or(not_earlier) {
        return Err(ScheduleFault::Dependency { rank, step, after });
    }
    let length = |slot| length(schedule.collective, program, slot);
    let earlier = body.after.iter().map(|&after| &program.steps[after as usize].kind);
    let others = earlier.flat_map(|kind| kind.reads().chain(kind.writes()));
    let Some(slot) = slots().next() else { return Ok(()) };
    match slots().chain(others).find(|&other| length(other) != length(slot)) {
        Some(other) => Err(ScheduleFault::Lengths { rank, step, slot, other }),
        None => Ok(()),
    }
}

fn writable(schedule: &Schedule, rank: Rank, slot: Slot) -> bool {
    match (slot.buffer, schedule.collective) {
        (Buffer::Input, _) => false,
        (Buffer::Output, Collective::Reduce { root }) => rank == root,
        _ => true,
    }
}

/// A name for the length of a chunk: chunks with the same name have the same length whatever the
/// caller asks for, others may differ. Where a slot is scratch, `program` tells what it is like.
fn length(collective: Collective, program: &Program, slot: Slot) -> (u32, u32) {
    let slot = match slot.buffer {
        Buffer::Scratch => program.scratch[slot.chunk as usize],
        _ => slot,
    };
    let (rank, chunk, is_input) = (program.rank, slot.chunk, slot.buffer == Buffer::Input);
    match collective {
        Collective::AllReduce | Collective::Reduce { .. } | Collective::Broadcast { .. } => {
            (chunk, 0)
        }
        Collective::ReduceScatter => (if is_input { chunk } else { rank }, 0),
        Collective::AllGather => (if is_input { rank } else { chunk }, 0),
        Collective::AllToAll if is_input => (rank, chunk),
        Collective::AllToAll => (chunk, rank),
        Collective::Gather { .. }
        | Collective::Scatter { .. }
        | Collective::Barrier
        | Collective::SendReceive { .. } => (0, 0),
    }
}

/// Goes through the accesses of each slot in program order.
fn check_races(program: &Program) -> Result<(), ScheduleFault> {
    let mut accesses = Accesses::new(program);
    for (step, body) in (0..).zip(&program.steps) {
        let unordered = |slot: Slot, earlier: StepIndex| -> Result<(), ScheduleFault> {
            match waits_for(program, step, earlier) {
                true => Ok(()),
                false => Err(ScheduleFault::Race { rank: program.rank, step, slot, earlier }),
            }
        };
        for slot in body.kind.reads() {
            accesses.of(slot).writer.map_or(Ok(()), |writer| unordered(slot, writer))?;
        }
        if let Some(slot) = body.kind.writes() {
            let access = accesses.of(slot);
            access.writer.map_or(Ok(()), |writer| unordered(slot, writer))?;
            access.readers.iter().try_for_each(|&reader| unordered(slot, reader))?;
            let refills = access.writer.is_some() && !body.kind.reads().any(|read| read == slot);
            if slot.buffer == Buffer::Scratch && refills {
                return Err(ScheduleFault::Refilled { rank: program.rank, step, slot });
            }
        }
        body.kind.reads().for_each(|slot| accesses.of(slot).readers.push(step));
        if let Some(slot) = body.kind.writes() {
            *accesses.of(slot) = Access { writer: Some(step), readers: Vec::new() };
        }
    }
    Ok(())
}

/// Who touched a slot last.
#[derive(Clone, Default)]
struct Access {
    writer: Option<StepIndex>,
    /// Since the writer.
    readers: Vec<StepIndex>,
}

struct Accesses {
    slots: Vec<Access>,
    input: usize,
    output: usize,
}

impl Accesses {
    fn new(program: &Program) -> Self {
        let (input, output) = (program.input_chunks as usize, program.output_chunks as usize);
        let slots = vec![Access::default(); input + output + program.scratch.len()];
        Self { slots, input, output }
    }

    fn of(&mut self, slot: Slot) -> &mut Access {
        let first = match slot.buffer {
            Buffer::Input => 0,
            Buffer::Output => self.input,
            Buffer::Scratch => self.input + self.output,
        };
        &mut self.slots[first + slot.chunk as usize]
    }
}

/// Whether `step` waits for `earlier`, directly or through other steps.
fn waits_for(program: &Program, step: StepIndex, earlier: StepIndex) -> bool {
    let mut seen = std::collections::HashSet::new();
    let mut pending = vec![step];
    while let Some(step) = pending.pop() {
        let after = &program.steps[step as usize].after;
        if after.binary_search(&earlier).is_ok() {
            return true;
        }
        pending.extend(after.iter().filter(|&&after| after > earlier && seen.insert(after)));
    }
    false
}

/// Every send has its receive, and both name chunks of one length.
pub(super) fn check_messages(schedule: &Schedule, flow: &Flow) -> Result<(), ScheduleFault> {
    let kind =
        |rank: Rank, step: StepIndex| &schedule.programs[rank as usize].steps[step as usize].kind;
    if let Some(node) = flow.unmatched.iter().min() {
        let kind = kind(node.rank, node.step);
        let peer = kind.sends_to().or(kind.receives_from()).unwrap_or(node.rank);
        return Err(ScheduleFault::Unmatched { rank: node.rank, step: node.step, peer });
    }
    let shares_host =
        |rank: Rank, other| schedule.programs[rank as usize].same_host.contains(&other);
    for message in &flow.messages {
        let (send, receive) = (message.send, message.receive);
        let (from, to) = (send.rank, receive.rank);
        if shares_host(from, to) != shares_host(to, from) {
            return Err(ScheduleFault::HostsDiffer { from, to, receive: receive.step });
        }
        let source = kind(send.rank, send.step).reads().next();
        let (Some(source), Some(slot)) = (source, kind(receive.rank, receive.step).writes()) else {
            continue;
        };
        let length =
            |rank: Rank, slot| length(schedule.collective, &schedule.programs[rank as usize], slot);
        if length(send.rank, source) != length(receive.rank, slot) {
            return Err(ScheduleFault::MessageLength {
                from: send.rank,
                send: send.step,
                to: receive.rank,
                receive: receive.step,
                slot,
            });
        }
    }
    Ok(())
}
