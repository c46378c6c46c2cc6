//! Proves a schedule right by symbolic execution.

mod fault;
mod outcome;
mod structure;
mod values;

pub use fault::ScheduleFault;

use crate::Schedule;
use crate::flow::Flow;

/// Proves that a schedule does what its collective promises, in every order of execution that the
/// programs allow.
///
/// 1. Shape: programs, chunks, peers and dependencies are what [`Schedule::collective`] calls for;
///    nothing writes the input, in a reduce only the root writes the output, and no scratch chunk
///    is filled twice.
/// 2. No race: of two steps of a rank that touch the same slot, one of them writing, the later
///    waits for the earlier, directly or through other steps. So every order that is allowed
///    computes the same, and it is enough to execute one.
/// 3. Every send has its receive, of a chunk of the same length, and both ends agree on whether
///    they share a host.
/// 4. No deadlock, even if each stream (from a to b) is taken strictly in order and holds only one
///    message.
/// 5. The result: each output chunk holds every contribution that it should, exactly once. All
///    ranks of an all-reduce combine them in the same order (but for the two sides of an operator,
///    which commute), so they hold the same bits. `last` is set on the reduction that completes a
///    chunk and on no other.
/// 6. A barrier: every rank's end depends on every rank's start.
///
/// # Errors
/// The first fault found, with the rank, step and slot where it is.
pub fn verify(schedule: &Schedule) -> Result<(), ScheduleFault> {
    structure::check(schedule)?;
    let flow = Flow::of(schedule);
    structure::check_messages(schedule, &flow)?;
    if !flow.cycle.is_empty() {
        let cycle = flow.cycle.iter().map(|node| (node.rank, node.step)).collect();
        return Err(ScheduleFault::Deadlock { cycle });
    }
    let end = values::execute(schedule, &flow)?;
    outcome::check(schedule, &end)?;
    outcome::check_barrier(schedule, &flow)
}
