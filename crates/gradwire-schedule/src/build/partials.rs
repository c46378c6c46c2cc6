//! Where partial results are kept while they grow.

use std::collections::HashMap;

use crate::{Buffer, ProgramBuilder, Rank, Slot, StepKind};

/// For each chunk, where the rank's contribution or what it has become lies at the moment.
///
/// Builders of reductions speak of chunks only; this decides whether a chunk is reduced in place
/// or, where the contribution must not be overwritten, in scratch or in the output.
pub(super) struct Partials {
    contribution: Buffer,
    in_place: bool,
    result: Option<(u32, Slot)>,
    current: HashMap<u32, Slot>,
}

impl Partials {
    /// Contributions lie in the output and are overwritten.
    pub(super) fn in_place() -> Self {
        Self { contribution: Buffer::Output, in_place: true, result: None, current: HashMap::new() }
    }

    /// Contributions lie in `contribution` and stay as they are. The chunk of `result` is reduced
    /// in the slot beside it, the others in scratch.
    pub(super) fn apart(contribution: Buffer, result: Option<(u32, Slot)>) -> Self {
        Self { contribution, in_place: false, result, current: HashMap::new() }
    }

    /// Where the chunk is now.
    pub(super) fn slot(&self, chunk: u32) -> Slot {
        let contribution = Slot { buffer: self.contribution, chunk };
        self.current.get(&chunk).copied().unwrap_or(contribution)
    }

    /// Receives a partial result of the chunk and adds it to what is here.
    pub(super) fn receive(
        &mut self,
        builder: &mut ProgramBuilder,
        from: Rank,
        chunk: u32,
        last: bool,
    ) {
        let local = self.slot(chunk);
        let destination = self.destination(builder, chunk, local);
        self.current.insert(chunk, destination);
        builder.push(StepKind::ReceiveReduce { from, local, destination, last });
    }

    fn destination(&self, builder: &mut ProgramBuilder, chunk: u32, local: Slot) -> Slot {
        match self.result {
            _ if self.in_place || self.current.contains_key(&chunk) => local,
            Some((own, slot)) if own == chunk => slot,
            _ => builder.scratch(local),
        }
    }
}
