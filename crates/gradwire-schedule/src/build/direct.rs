//! Every rank exchanges with every other directly: two hops at most.
//!
//! Sends go to the ranks below in turn, receives come from the ranks above in turn, so that no
//! rank is everybody's target at once.

use super::Place;
use super::partials::Partials;
use crate::{Buffer, Collective, Program, ProgramBuilder, Rank, Slot};

pub(super) fn program(collective: Collective, place: Place) -> Program {
    match collective {
        Collective::AllReduce => all_reduce(place),
        Collective::Reduce { root } => reduce(place, root),
        Collective::Broadcast { root } => broadcast(place, root),
        Collective::ReduceScatter => reduce_scatter(place),
        Collective::AllGather => all_gather(place),
        Collective::Gather { root } => gather(place, root),
        Collective::Scatter { root } => scatter(place, root),
        Collective::AllToAll => all_to_all(place),
        Collective::Barrier => barrier(place),
        Collective::SendReceive { from, to } => send_receive(place, from, to),
    }
}

fn all_reduce(place: Place) -> Program {
    let mut builder = ProgramBuilder::new(place.rank, 0, place.ranks);
    reduce_own(&mut builder, &mut Partials::in_place(), place);
    spread_own(&mut builder, Slot::output(place.rank), place);
    builder.finish()
}

fn reduce_scatter(place: Place) -> Program {
    let mut builder = ProgramBuilder::new(place.rank, place.ranks, 1);
    let mut partials = Partials::apart(Buffer::Input, Some((place.rank, Slot::output(0))));
    reduce_own(&mut builder, &mut partials, place);
    builder.finish()
}

pub(super) fn all_gather(place: Place) -> Program {
    let mut builder = ProgramBuilder::new(place.rank, 1, place.ranks);
    spread_own(&mut builder, Slot::input(0), place);
    builder.copy(Slot::input(0), Slot::output(place.rank));
    builder.finish()
}

/// Everybody's chunk goes to its owner, who reduces it.
fn reduce_own(builder: &mut ProgramBuilder, partials: &mut Partials, place: Place) {
    for (below, above) in place.others_down().zip(place.others_up()) {
        builder.send(below, partials.slot(below));
        let last = above == place.down(1);
        partials.receive(builder, above, place.rank, last);
    }
}

/// The own chunk goes to everybody.
fn spread_own(builder: &mut ProgramBuilder, own: Slot, place: Place) {
    for below in place.others_down() {
        builder.send(below, own);
    }
    for above in place.others_up() {
        builder.receive(above, Slot::output(above));
    }
}

/// The chunk that a rank other than the root owns: one for each of them.
fn owned_chunk(rank: Rank, root: Rank, ranks: Rank) -> u32 {
    Place { rank, ranks }.behind(root) - 1
}

/// The ranks other than the root reduce a chunk each, and the root adds its own part as the
/// results come in. The root receives the tensor once and sends nothing; the others send it once.
fn reduce(place: Place, root: Rank) -> Program {
    let mut builder = ProgramBuilder::new(place.rank, 0, place.ranks - 1);
    let chunk_of = |rank| owned_chunk(rank, root, place.ranks);
    if place.rank == root {
        for owner in place.others_up() {
            builder.receive_reduce(owner, Slot::output(chunk_of(owner)), true);
        }
        return builder.finish();
    }
    let own = chunk_of(place.rank);
    let mut partials = Partials::apart(Buffer::Output, None);
    for below in place.others_down().filter(|&rank| rank != root) {
        builder.send(below, Slot::output(chunk_of(below)));
    }
    for above in place.others_up().filter(|&rank| rank != root) {
        partials.receive(&mut builder, above, own, false);
    }
    builder.send(root, partials.slot(own));
    builder.finish()
}

/// Scatter, then all-gather (van de Geijn). The root sends the tensor once, each of the others a
/// little less than once.
fn broadcast(place: Place, root: Rank) -> Program {
    let mut builder = ProgramBuilder::new(place.rank, 0, place.ranks - 1);
    let slot_of = |rank| Slot::output(owned_chunk(rank, root, place.ranks));
    if place.rank == root {
        for owner in place.others_up() {
            builder.send(owner, slot_of(owner));
        }
        return builder.finish();
    }
    builder.receive(root, slot_of(place.rank));
    for below in place.others_down().filter(|&rank| rank != root) {
        builder.send(below, slot_of(place.rank));
    }
    for above in place.others_up().filter(|&rank| rank != root) {
        builder.receive(above, slot_of(above));
    }
    builder.finish()
}

pub(super) fn gather(place: Place, root: Rank) -> Program {
    let output_chunks = if place.rank == root { place.ranks } else { 0 };
    let mut builder = ProgramBuilder::new(place.rank, 1, output_chunks);
    if place.rank != root {
        builder.send(root, Slot::input(0));
        return builder.finish();
    }
    builder.copy(Slot::input(0), Slot::output(root));
    for above in place.others_up() {
        builder.receive(above, Slot::output(above));
    }
    builder.finish()
}

pub(super) fn scatter(place: Place, root: Rank) -> Program {
    let input_chunks = if place.rank == root { place.ranks } else { 0 };
    let mut builder = ProgramBuilder::new(place.rank, input_chunks, 1);
    if place.rank != root {
        builder.receive(root, Slot::output(0));
        return builder.finish();
    }
    for above in place.others_up() {
        builder.send(above, Slot::input(above));
    }
    builder.copy(Slot::input(root), Slot::output(0));
    builder.finish()
}

fn all_to_all(place: Place) -> Program {
    let mut builder = ProgramBuilder::new(place.rank, place.ranks, place.ranks);
    for (below, above) in place.others_down().zip(place.others_up()) {
        builder.send(below, Slot::input(below));
        builder.receive(above, Slot::output(above));
    }
    builder.copy(Slot::input(place.rank), Slot::output(place.rank));
    builder.finish()
}

pub(super) fn barrier(place: Place) -> Program {
    let mut builder = ProgramBuilder::new(place.rank, 0, 1);
    for below in place.others_down() {
        builder.send(below, Slot::output(0));
    }
    for above in place.others_up() {
        builder.receive(above, Slot::output(0));
    }
    builder.finish()
}

fn send_receive(place: Place, from: Rank, to: Rank) -> Program {
    let (sends, receives) = (place.rank == from, place.rank == to);
    let mut builder = ProgramBuilder::new(place.rank, sends.into(), receives.into());
    match (sends, receives) {
        (true, true) => builder.copy(Slot::input(0), Slot::output(0)),
        (true, false) => builder.send(to, Slot::input(0)),
        (false, true) => builder.receive(from, Slot::output(0)),
        (false, false) => {}
    }
    builder.finish()
}
