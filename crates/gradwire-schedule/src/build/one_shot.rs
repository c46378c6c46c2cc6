//! One hop: every rank sends all it has to every other and reduces for itself.
//!
//! The least latency, at n - 1 times the bytes. Every rank reduces in the order of ranks, so that
//! all get the same bits.

use super::{Place, direct};
use crate::{Collective, Program, ProgramBuilder, Slot, StepKind};

pub(super) fn program(collective: Collective, place: Place) -> Program {
    match collective {
        Collective::AllReduce => all_reduce(place),
        Collective::AllGather => direct::all_gather(place),
        Collective::Barrier => direct::barrier(place),
        _ => unreachable!("checked by Algorithm::supports"),
    }
}

fn all_reduce(place: Place) -> Program {
    let mut builder = ProgramBuilder::new(place.rank, 0, 1);
    for below in place.others_down() {
        builder.send(below, Slot::output(0));
    }
    match place.rank {
        0 | 1 => reduce_in_place(&mut builder, place),
        _ => reduce_in_scratch(&mut builder, place),
    }
    builder.finish()
}

/// For ranks 0 and 1, whose own contribution is one of the first two: operators commute, so either
/// may be the one that is already there.
fn reduce_in_place(builder: &mut ProgramBuilder, place: Place) {
    for other in (0..place.ranks).filter(|&other| other != place.rank) {
        let last = other == place.ranks - 1 || place.ranks == 2;
        builder.receive_reduce(other, Slot::output(0), last);
    }
}

/// For the other ranks: what the ranks below contribute comes before their own contribution.
fn reduce_in_scratch(builder: &mut ProgramBuilder, place: Place) {
    let output = Slot::output(0);
    let sum = builder.scratch(output);
    builder.receive(0, sum);
    for below in 1..place.rank {
        builder.receive_reduce(below, sum, false);
    }
    if place.rank == place.ranks - 1 {
        let (local, source) = (output, sum);
        builder.push(StepKind::Reduce { source, local, destination: output, last: true });
        return;
    }
    builder.push(StepKind::Reduce { source: output, local: sum, destination: sum, last: false });
    for above in place.rank + 1..place.ranks - 1 {
        builder.receive_reduce(above, sum, false);
    }
    let from = place.ranks - 1;
    builder.push(StepKind::ReceiveReduce { from, local: sum, destination: output, last: true });
}
