//! Chunks travel from each rank to the next.
//!
//! All-reduce is reduce-scatter, then all-gather (Patarasuk and Yuan, "Bandwidth optimal
//! all-reduce algorithms for clusters of workstations", 2009). Reduce and broadcast are chains,
//! pipelined by the tiles of their single chunk.

use super::Place;
use super::partials::Partials;
use crate::{Buffer, Collective, Program, ProgramBuilder, Rank, Slot};

pub(super) fn program(collective: Collective, place: Place) -> Program {
    match collective {
        Collective::AllReduce => all_reduce(place),
        Collective::ReduceScatter => reduce_scatter(place),
        Collective::AllGather => all_gather(place),
        Collective::Reduce { root } => reduce(place, root),
        Collective::Broadcast { root } => broadcast(place, root),
        _ => unreachable!("checked by Algorithm::supports"),
    }
}

fn all_reduce(place: Place) -> Program {
    let mut builder = ProgramBuilder::new(place.rank, 0, place.ranks);
    reduce_around(&mut builder, &mut Partials::in_place(), place);
    gather_around(&mut builder, Slot::output(place.rank), place);
    builder.finish()
}

fn reduce_scatter(place: Place) -> Program {
    let mut builder = ProgramBuilder::new(place.rank, place.ranks, 1);
    let mut partials = Partials::apart(Buffer::Input, Some((place.rank, Slot::output(0))));
    reduce_around(&mut builder, &mut partials, place);
    builder.finish()
}

fn all_gather(place: Place) -> Program {
    let mut builder = ProgramBuilder::new(place.rank, 1, place.ranks);
    gather_around(&mut builder, Slot::input(0), place);
    builder.copy(Slot::input(0), Slot::output(place.rank));
    builder.finish()
}

/// Chunk c starts at rank c + 1, grows at every rank and is complete when it comes to rank c.
fn reduce_around(builder: &mut ProgramBuilder, partials: &mut Partials, place: Place) {
    for distance in 1..place.ranks {
        let sent = place.down(distance);
        builder.send(place.up(1), partials.slot(sent));
        let last = distance == place.ranks - 1;
        let received = if last { place.rank } else { place.down(distance + 1) };
        partials.receive(builder, place.down(1), received, last);
    }
}

/// Chunk c starts at rank c (in `own`) and is kept by every rank that it passes.
fn gather_around(builder: &mut ProgramBuilder, own: Slot, place: Place) {
    let mut source = own;
    for distance in 1..place.ranks {
        builder.send(place.up(1), source);
        source = Slot::output(place.down(distance));
        builder.receive(place.down(1), source);
    }
}

/// The chain starts behind the root and ends there.
fn reduce(place: Place, root: Rank) -> Program {
    let mut builder = ProgramBuilder::new(place.rank, 0, 1);
    let mut partials = match place.rank == root {
        true => Partials::in_place(),
        false => Partials::apart(Buffer::Output, None),
    };
    if place.behind(root) != 1 {
        partials.receive(&mut builder, place.down(1), 0, place.rank == root);
    }
    if place.rank != root {
        builder.send(place.up(1), partials.slot(0));
    }
    builder.finish()
}

fn broadcast(place: Place, root: Rank) -> Program {
    let mut builder = ProgramBuilder::new(place.rank, 0, 1);
    if place.rank != root {
        builder.receive(place.down(1), Slot::output(0));
    }
    if place.up(1) != root {
        builder.send(place.up(1), Slot::output(0));
    }
    builder.finish()
}
