//! What can be wrong with a schedule.

use thiserror::Error;

use crate::{Buffer, Rank, Slot, StepIndex};

/// The first thing found wrong with a schedule.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ScheduleFault {
    /// There is no program at all.
    #[error("the schedule has no programs")]
    Empty,
    /// The root or peer that the collective names is not in the group.
    #[error("the collective names rank {rank}, but the schedule has {ranks}")]
    NoSuchRank {
        /// The rank named.
        rank: Rank,
        /// The number of ranks.
        ranks: Rank,
    },
    /// A program says it belongs to another rank.
    #[error("the program at position {position} is for rank {rank}")]
    Misplaced {
        /// Where the program is.
        position: Rank,
        /// The rank that it names.
        rank: Rank,
    },
    /// A buffer has the wrong number of chunks.
    #[error("rank {rank}: {buffer:?} has {chunks} chunks, the collective has {expected}")]
    Chunks {
        /// The rank.
        rank: Rank,
        /// The buffer.
        buffer: Buffer,
        /// The number of chunks it has.
        chunks: u32,
        /// The number it should have.
        expected: u32,
    },
    /// A scratch chunk takes its length from a slot that is not there (or is scratch itself).
    #[error("rank {rank}: {slot} has the length of {like}, which is no input or output slot")]
    Scratch {
        /// The rank.
        rank: Rank,
        /// The scratch slot.
        slot: Slot,
        /// Where its length comes from.
        like: Slot,
    },
    /// A step touches a slot that is not there.
    #[error("rank {rank}, step {step}: there is no {slot}")]
    NoSuchSlot {
        /// The rank.
        rank: Rank,
        /// The step.
        step: StepIndex,
        /// The slot.
        slot: Slot,
    },
    /// A step writes to the input, or to the output where the collective forbids it.
    #[error("rank {rank}, step {step}: {slot} must not be written")]
    ReadOnly {
        /// The rank.
        rank: Rank,
        /// The step.
        step: StepIndex,
        /// The slot.
        slot: Slot,
    },
    /// A step waits for itself, for a later step or for one that is not there, or its list is not
    /// sorted.
    #[error(
        "rank {rank}, step {step}: waits for step {after}; the list must name earlier steps, sorted"
    )]
    Dependency {
        /// The rank.
        rank: Rank,
        /// The step.
        step: StepIndex,
        /// What it waits for.
        after: StepIndex,
    },
    /// Two steps of a rank touch a slot, one writes it, and the later does not wait.
    #[error("rank {rank}, step {step}: touches {slot} without waiting for step {earlier}")]
    Race {
        /// The rank.
        rank: Rank,
        /// The later step.
        step: StepIndex,
        /// The slot.
        slot: Slot,
        /// The earlier step.
        earlier: StepIndex,
    },
    /// A scratch slot is filled a second time. It holds only a few tiles, so its tiles would be
    /// refilled before the first filling is through.
    #[error("rank {rank}, step {step}: {slot} is filled a second time; take another scratch slot")]
    Refilled {
        /// The rank.
        rank: Rank,
        /// The step.
        step: StepIndex,
        /// The slot.
        slot: Slot,
    },
    /// A step combines, or waits for a step on, chunks of different lengths.
    #[error("rank {rank}, step {step}: {slot} and {other} differ in length")]
    Lengths {
        /// The rank.
        rank: Rank,
        /// The step.
        step: StepIndex,
        /// A slot of the step.
        slot: Slot,
        /// The slot that differs.
        other: Slot,
    },
    /// A message is sent from and received into chunks of different lengths.
    #[error(
        "rank {to}, step {receive}: {slot} differs in length from what step {send} of rank {from} \
         sends"
    )]
    MessageLength {
        /// The sender.
        from: Rank,
        /// The sender's step.
        send: StepIndex,
        /// The receiver.
        to: Rank,
        /// The receiver's step.
        receive: StepIndex,
        /// Where it is received.
        slot: Slot,
    },
    /// One end of a message takes the other for a rank of its host, but not the other way round: a
    /// codec would be used on one side only.
    #[error(
        "rank {to}, step {receive}: rank {from} is on its host, or not, according to one side only"
    )]
    HostsDiffer {
        /// The sender.
        from: Rank,
        /// The receiver.
        to: Rank,
        /// The receiver's step.
        receive: StepIndex,
    },
    /// A step names itself or a rank outside of the group as its peer.
    #[error("rank {rank}, step {step}: rank {peer} is no peer")]
    Peer {
        /// The rank.
        rank: Rank,
        /// The step.
        step: StepIndex,
        /// The peer that it names.
        peer: Rank,
    },
    /// A send that nobody receives, or a receive that nobody sends.
    #[error("rank {rank}, step {step}: rank {peer} has no step on the other side")]
    Unmatched {
        /// The rank.
        rank: Rank,
        /// The step.
        step: StepIndex,
        /// Who should have the other side.
        peer: Rank,
    },
    /// Steps wait for each other in a circle.
    #[error("deadlock: {}", circle(cycle))]
    Deadlock {
        /// Rank and step of each step in the circle; each waits for the next, the last for the
        /// first.
        cycle: Vec<(Rank, StepIndex)>,
    },
    /// A step reads a slot that holds nothing yet.
    #[error("rank {rank}, step {step}: {slot} is read before it is written")]
    Unwritten {
        /// The rank.
        rank: Rank,
        /// The step.
        step: StepIndex,
        /// The slot.
        slot: Slot,
    },
    /// A reduction would count a contribution twice.
    #[error("rank {rank}, step {step}: {slot} would hold rank {contribution}'s share twice")]
    Twice {
        /// The rank.
        rank: Rank,
        /// The step.
        step: StepIndex,
        /// The slot written.
        slot: Slot,
        /// Whose contribution comes twice.
        contribution: Rank,
    },
    /// A reduction combines different chunks of the tensor.
    #[error("rank {rank}, step {step}: {slot} would mix chunks {first} and {second}")]
    Mixed {
        /// The rank.
        rank: Rank,
        /// The step.
        step: StepIndex,
        /// The slot written.
        slot: Slot,
        /// One chunk.
        first: u32,
        /// The other.
        second: u32,
    },
    /// A step reduces where the collective does not.
    #[error("rank {rank}, step {step}: {slot} is reduced in a collective without reduction")]
    Reduction {
        /// The rank.
        rank: Rank,
        /// The step.
        step: StepIndex,
        /// The slot written.
        slot: Slot,
    },
    /// `last` is missing on the step that completes a reduction, or set on another.
    #[error(
        "rank {rank}, step {step}: {slot} is {}complete, but `last` says otherwise",
        if *complete { "" } else { "not " }
    )]
    Last {
        /// The rank.
        rank: Rank,
        /// The step.
        step: StepIndex,
        /// The slot written.
        slot: Slot,
        /// Whether the reduction is complete.
        complete: bool,
    },
    /// An output slot does not hold what it should at the end.
    #[error("rank {rank}: {slot} ends with {found}, should be {expected}")]
    Outcome {
        /// The rank.
        rank: Rank,
        /// The slot.
        slot: Slot,
        /// What it should hold.
        expected: String,
        /// What it holds.
        found: String,
    },
    /// Two ranks of an all-reduce combine the contributions in different orders.
    #[error("rank {rank}: {slot} is reduced in another order than on rank 0: bits may differ")]
    Order {
        /// The rank.
        rank: Rank,
        /// The slot.
        slot: Slot,
    },
    /// A rank may leave a barrier before another has come to it.
    #[error("rank {rank} may pass the barrier before rank {unheard} has come to it")]
    Barrier {
        /// The rank that passes.
        rank: Rank,
        /// The rank that may be missing.
        unheard: Rank,
    },
}

fn circle(cycle: &[(Rank, StepIndex)]) -> String {
    let names: Vec<String> =
        cycle.iter().map(|(rank, step)| format!("rank {rank} step {step}")).collect();
    let first = names.first().cloned().unwrap_or_default();
    format!("{} waits for {first}", names.join(" waits for "))
}
