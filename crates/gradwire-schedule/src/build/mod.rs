//! The builders: from (algorithm, collective, rank, ranks) to a program.

mod direct;
mod halving_doubling;
mod hierarchical;
mod one_shot;
mod partials;
mod ring;
mod star;
mod tree;

use self::hierarchical::Between;
use crate::{Algorithm, Collective, Hosts, Program, ProgramBuilder, Rank, Slot, StepKind};

/// The rank that a program is built for, and the number of ranks around it.
#[derive(Clone, Copy)]
struct Place {
    rank: Rank,
    ranks: Rank,
}

impl Place {
    /// The rank `distance` further on, around the end. `distance` is less than the number of ranks.
    fn up(self, distance: Rank) -> Rank {
        (self.rank + distance) % self.ranks
    }

    /// The rank `distance` further back, around the end.
    fn down(self, distance: Rank) -> Rank {
        (self.rank + self.ranks - distance) % self.ranks
    }

    /// How far this rank is behind `root`, going up.
    fn behind(self, root: Rank) -> Rank {
        self.down(root)
    }

    /// The other ranks, starting with the next one up. Receiving in this order while the others
    /// send in the order of [`Place::others_down`] keeps any rank from being everybody's target.
    fn others_up(self) -> impl Iterator<Item = Rank> {
        (1..self.ranks).map(move |distance| self.up(distance))
    }

    /// The other ranks, starting with the next one down.
    fn others_down(self) -> impl Iterator<Item = Rank> {
        (1..self.ranks).map(move |distance| self.down(distance))
    }
}

/// Builds the program of one rank. The algorithm supports the collective, and every rank that is
/// named is less than `ranks`. Where nothing is known of hosts, each rank has its own.
pub(crate) fn program(
    algorithm: Algorithm,
    collective: Collective,
    rank: Rank,
    ranks: Rank,
    hosts: Option<&Hosts>,
) -> Program {
    let place = Place { rank, ranks };
    if ranks == 1 {
        return alone(collective);
    }
    let in_levels = |between| match hosts {
        Some(hosts) => hierarchical::program(collective, rank, hosts, between),
        None => hierarchical::program(collective, rank, &Hosts::apart(ranks), between),
    };
    match algorithm {
        Algorithm::Ring => ring::program(collective, place),
        Algorithm::Tree => tree::program(collective, place),
        Algorithm::HalvingDoubling => halving_doubling::program(collective, place),
        Algorithm::Direct => direct::program(collective, place),
        Algorithm::Star => star::program(collective, place),
        Algorithm::OneShot => one_shot::program(collective, place),
        Algorithm::Hierarchical => in_levels(Between::Direct),
        Algorithm::HierarchicalRing => in_levels(Between::Ring),
    }
}

/// With a single rank there is nothing to move, but input must still become output.
fn alone(collective: Collective) -> Program {
    if collective.works_in_place() || collective == Collective::Barrier {
        return ProgramBuilder::new(0, 0, 1).finish();
    }
    let mut builder = ProgramBuilder::new(0, 1, 1);
    builder.copy(Slot::input(0), Slot::output(0));
    builder.finish()
}

impl ProgramBuilder {
    fn send(&mut self, to: Rank, source: Slot) {
        self.push(StepKind::Send { to, source });
    }

    fn receive(&mut self, from: Rank, destination: Slot) {
        self.push(StepKind::Receive { from, destination });
    }

    fn copy(&mut self, source: Slot, destination: Slot) {
        self.push(StepKind::Copy { source, destination });
    }

    /// `slot = slot ⊕ received`.
    fn receive_reduce(&mut self, from: Rank, slot: Slot, last: bool) {
        self.push(StepKind::ReceiveReduce { from, local: slot, destination: slot, last });
    }
}
