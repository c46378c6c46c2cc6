//! Recursive halving, then recursive doubling, at any number of ranks.
//!
//! In the round of distance d (…, 4, 2, 1) a rank passes on what it holds for the ranks at
//! distances d to 2d - 1, to the one at distance d; all-gather is the same in reverse. Where the
//! number of ranks is a power of two, distance is by exclusive or and this is Rabenseifner's
//! algorithm (Thakur, Rabenseifner and Gropp, "Optimization of collective communication
//! operations in MPICH", 2005). Otherwise distance is around a circle (Bruck et al., "Efficient
//! algorithms for all-to-all communications in multiport message-passing systems", 1997; Träff,
//! "Optimal, non-pipelined reduce-scatter and allreduce algorithms", 2024): the number of rounds
//! is the logarithm rounded up and every rank sends (n-1)/n of the tensor, with no rank folded
//! into another. Chunks carry their own slots, so nothing is reordered.

use super::Place;
use super::partials::Partials;
use crate::{Buffer, Collective, Program, ProgramBuilder, Rank, Slot};

pub(super) fn program(collective: Collective, place: Place) -> Program {
    match collective {
        Collective::AllReduce => all_reduce(place),
        Collective::ReduceScatter => reduce_scatter(place),
        Collective::AllGather => all_gather(place),
        Collective::Barrier => barrier(place),
        _ => unreachable!("checked by Algorithm::supports"),
    }
}

/// The rank at a distance in the direction in which reductions travel.
fn beyond(place: Place, distance: Rank) -> Rank {
    match place.ranks.is_power_of_two() {
        true => place.rank ^ distance,
        false => place.up(distance),
    }
}

/// The rank that sees this one at a distance.
fn before(place: Place, distance: Rank) -> Rank {
    match place.ranks.is_power_of_two() {
        true => place.rank ^ distance,
        false => place.down(distance),
    }
}

/// The distances of the rounds, 1, 2, 4 and so on, below the number of ranks.
fn distances(place: Place) -> impl DoubleEndedIterator<Item = Rank> {
    (0..place.ranks.next_power_of_two().ilog2()).map(|bit| 1 << bit)
}

/// The chunks of the ranks at distances `first` to 2 `first` - 1, less `shift`.
///
/// They are in the order of chunks, the same on every rank, so that a chunk on its way through
/// several ranks never waits behind another that waits behind it elsewhere.
fn chunks(place: Place, first: Rank, shift: Rank) -> Vec<u32> {
    let last = place.ranks.min(2 * first);
    let mut chunks: Vec<u32> =
        (first..last).map(|distance| beyond(place, distance - shift)).collect();
    chunks.sort_unstable();
    chunks
}

fn all_reduce(place: Place) -> Program {
    let mut builder = ProgramBuilder::new(place.rank, 0, place.ranks);
    halve(&mut builder, &mut Partials::in_place(), place);
    double(&mut builder, Slot::output(place.rank), place);
    builder.finish()
}

fn reduce_scatter(place: Place) -> Program {
    let mut builder = ProgramBuilder::new(place.rank, place.ranks, 1);
    let mut partials = Partials::apart(Buffer::Input, Some((place.rank, Slot::output(0))));
    halve(&mut builder, &mut partials, place);
    builder.finish()
}

fn all_gather(place: Place) -> Program {
    let mut builder = ProgramBuilder::new(place.rank, 1, place.ranks);
    double(&mut builder, Slot::input(0), place);
    builder.copy(Slot::input(0), Slot::output(place.rank));
    builder.finish()
}

/// Reduce-scatter: rank r ends with chunk r.
fn halve(builder: &mut ProgramBuilder, partials: &mut Partials, place: Place) {
    for distance in distances(place).rev() {
        for chunk in chunks(place, distance, 0) {
            builder.send(beyond(place, distance), partials.slot(chunk));
        }
        for chunk in chunks(place, distance, distance) {
            let last = distance == 1;
            partials.receive(builder, before(place, distance), chunk, last);
        }
    }
}

/// All-gather: rank r starts with chunk r, in `own`.
fn double(builder: &mut ProgramBuilder, own: Slot, place: Place) {
    let held = |chunk| if chunk == place.rank { own } else { Slot::output(chunk) };
    for distance in distances(place) {
        for chunk in chunks(place, distance, distance) {
            builder.send(before(place, distance), held(chunk));
        }
        for chunk in chunks(place, distance, 0) {
            builder.receive(beyond(place, distance), Slot::output(chunk));
        }
    }
}

/// The dissemination barrier: Hensgen, Finkel and Manber, "Two algorithms for barrier
/// synchronization", 1988.
fn barrier(place: Place) -> Program {
    let mut builder = ProgramBuilder::new(place.rank, 0, 1);
    for distance in distances(place) {
        builder.send(place.up(distance), Slot::output(0));
        builder.receive(place.down(distance), Slot::output(0));
    }
    builder.finish()
}
