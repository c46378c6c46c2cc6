//! Everything goes through one rank: the root where there is one, rank 0 otherwise.
//!
//! The least number of messages, for tiny tensors, and the only way between ranks that can all
//! reach one but not each other.

use super::partials::Partials;
use super::{Place, direct};
use crate::{Buffer, Collective, Program, ProgramBuilder, Rank, Slot};

/// The middle of collectives without a root.
const CENTRE: Rank = 0;

pub(super) fn program(collective: Collective, place: Place) -> Program {
    match collective {
        Collective::AllReduce => all_reduce(place),
        Collective::Reduce { root } => reduce(place, root),
        Collective::Broadcast { root } => broadcast(place, root),
        Collective::ReduceScatter => reduce_scatter(place),
        Collective::AllGather => all_gather(place),
        Collective::Gather { root } => direct::gather(place, root),
        Collective::Scatter { root } => direct::scatter(place, root),
        Collective::Barrier => barrier(place),
        _ => unreachable!("checked by Algorithm::supports"),
    }
}

fn all_reduce(place: Place) -> Program {
    let mut builder = ProgramBuilder::new(place.rank, 0, 1);
    collect(&mut builder, place, CENTRE);
    distribute(&mut builder, place, CENTRE);
    builder.finish()
}

fn reduce(place: Place, root: Rank) -> Program {
    let mut builder = ProgramBuilder::new(place.rank, 0, 1);
    collect(&mut builder, place, root);
    builder.finish()
}

fn broadcast(place: Place, root: Rank) -> Program {
    let mut builder = ProgramBuilder::new(place.rank, 0, 1);
    distribute(&mut builder, place, root);
    builder.finish()
}

fn collect(builder: &mut ProgramBuilder, place: Place, centre: Rank) {
    if place.rank != centre {
        return builder.send(centre, Slot::output(0));
    }
    for above in place.others_up() {
        builder.receive_reduce(above, Slot::output(0), above == place.down(1));
    }
}

fn distribute(builder: &mut ProgramBuilder, place: Place, centre: Rank) {
    if place.rank != centre {
        return builder.receive(centre, Slot::output(0));
    }
    for above in place.others_up() {
        builder.send(above, Slot::output(0));
    }
}

fn reduce_scatter(place: Place) -> Program {
    let mut builder = ProgramBuilder::new(place.rank, place.ranks, 1);
    if place.rank != CENTRE {
        for chunk in 0..place.ranks {
            builder.send(CENTRE, Slot::input(chunk));
        }
        builder.receive(CENTRE, Slot::output(0));
        return builder.finish();
    }
    let mut partials = Partials::apart(Buffer::Input, Some((CENTRE, Slot::output(0))));
    for chunk in 0..place.ranks {
        for above in place.others_up() {
            partials.receive(&mut builder, above, chunk, above == place.down(1));
        }
        if chunk != CENTRE {
            builder.send(chunk, partials.slot(chunk));
        }
    }
    builder.finish()
}

/// The centre passes each chunk on as soon as it comes, to all but its owner.
fn all_gather(place: Place) -> Program {
    let mut builder = ProgramBuilder::new(place.rank, 1, place.ranks);
    if place.rank != CENTRE {
        builder.send(CENTRE, Slot::input(0));
        for chunk in (0..place.ranks).filter(|&chunk| chunk != place.rank) {
            builder.receive(CENTRE, Slot::output(chunk));
        }
        builder.copy(Slot::input(0), Slot::output(place.rank));
        return builder.finish();
    }
    builder.copy(Slot::input(0), Slot::output(CENTRE));
    for chunk in 0..place.ranks {
        if chunk != CENTRE {
            builder.receive(chunk, Slot::output(chunk));
        }
        let source = if chunk == CENTRE { Slot::input(0) } else { Slot::output(chunk) };
        for other in place.others_up().filter(|&other| other != chunk) {
            builder.send(other, source);
        }
    }
    builder.finish()
}

fn barrier(place: Place) -> Program {
    let mut builder = ProgramBuilder::new(place.rank, 0, 1);
    if place.rank != CENTRE {
        builder.send(CENTRE, Slot::output(0));
    } else {
        for above in place.others_up() {
            builder.receive(above, Slot::output(0));
        }
    }
    distribute(&mut builder, place, CENTRE);
    builder.finish()
}
