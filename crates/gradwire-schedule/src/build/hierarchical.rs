//! Within each host first, then between hosts, then within each host again.
//!
//! On every host each chunk has one relay. What a host has of a chunk is reduced at its relay
//! there, relays of a chunk exchange it between hosts, and each hands the result to the ranks of
//! its host. So a host sends each value to others as often as if it were a single rank, all its
//! ranks share in that, and a codec (which is only used between hosts) rounds twice, however many
//! ranks there are. Two-level schemes of this kind: Cho et al., "BlueConnect: decomposing
//! all-reduce for deep learning on heterogeneous network hierarchy", MLSys 2019.

use super::partials::Partials;
use crate::{Buffer, Collective, Hosts, Program, ProgramBuilder, Rank, Slot, StepKind};

/// How relays exchange chunks between hosts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Between {
    /// Each with each, as [`super::direct`].
    Direct,
    /// From host to host, as [`super::ring`].
    Ring,
}

pub(super) fn program(
    collective: Collective,
    rank: Rank,
    hosts: &Hosts,
    between: Between,
) -> Program {
    let level = Level { rank, host: hosts.host_of(rank), hosts, between };
    match collective {
        Collective::AllReduce => level.all_reduce(),
        Collective::ReduceScatter => level.reduce_scatter(),
        Collective::AllGather => level.all_gather(),
        _ => unreachable!("checked by Algorithm::supports"),
    }
}

/// A chunk and where it is at home: the relay there completes it.
#[derive(Clone, Copy)]
struct Part {
    chunk: u32,
    home: u32,
    /// Which of a host's ranks relays it, counted around.
    column: u32,
}

/// A rank's view of the hosts.
struct Level<'a> {
    rank: Rank,
    host: u32,
    hosts: &'a Hosts,
    between: Between,
}

impl Level<'_> {
    fn all_reduce(&self) -> Program {
        let hosts = self.hosts.count();
        let columns = (0..self.hosts.most_ranks())
            .flat_map(|column| (0..hosts).map(move |home| (column, home)));
        let parts: Vec<Part> = (0..)
            .zip(columns)
            .map(|(chunk, (column, home))| Part { chunk, home, column })
            .collect();
        let mut builder = self.builder(0, parts.len() as u32);
        self.reduce(&mut builder, &mut Partials::in_place(), &parts);
        let relayed = self.relayed(&parts);
        self.gather_between(&mut builder, &relayed, |part| Slot::output(part.chunk));
        self.gather_within(&mut builder, &parts);
        builder.finish()
    }

    fn reduce_scatter(&self) -> Program {
        let parts = self.part_of_each_rank();
        let mut builder = self.builder(self.hosts.ranks(), 1);
        let result = Some((self.rank, Slot::output(0)));
        self.reduce(&mut builder, &mut Partials::apart(Buffer::Input, result), &parts);
        builder.finish()
    }

    fn all_gather(&self) -> Program {
        let parts = self.part_of_each_rank();
        let mut builder = self.builder(1, self.hosts.ranks());
        self.gather_between(&mut builder, &self.relayed(&parts), |_| Slot::input(0));
        builder.copy(Slot::input(0), Slot::output(self.rank));
        self.gather_within(&mut builder, &parts);
        builder.finish()
    }

    fn builder(&self, input_chunks: u32, output_chunks: u32) -> ProgramBuilder {
        let mut builder = ProgramBuilder::new(self.rank, input_chunks, output_chunks);
        builder.same_host(self.neighbors().collect());
        builder
    }

    /// The other ranks of this host.
    fn neighbors(&self) -> impl Iterator<Item = Rank> {
        self.hosts.ranks_on(self.host).iter().copied().filter(|rank| *rank != self.rank)
    }

    fn part_of_each_rank(&self) -> Vec<Part> {
        let place = |home| (0..).zip(self.hosts.ranks_on(home)).map(move |it| (home, it));
        let mut parts: Vec<Part> = (0..self.hosts.count())
            .flat_map(place)
            .map(|(home, (column, rank))| Part { chunk: *rank, home, column })
            .collect();
        parts.sort_unstable_by_key(|part| part.chunk);
        parts
    }

    /// The rank that relays a chunk on a host.
    fn relay(&self, host: u32, part: Part) -> Rank {
        let ranks = self.hosts.ranks_on(host);
        ranks[part.column as usize % ranks.len()]
    }

    /// The parts that this rank relays, by their homes.
    fn relayed(&self, parts: &[Part]) -> Vec<Vec<Part>> {
        let mut relayed = vec![Vec::new(); self.hosts.count() as usize];
        for part in parts.iter().filter(|part| self.relay(self.host, **part) == self.rank) {
            relayed[part.home as usize].push(*part);
        }
        relayed
    }

    fn up(&self, distance: u32) -> u32 {
        (self.host + distance) % self.hosts.count()
    }

    fn down(&self, distance: u32) -> u32 {
        (self.host + self.hosts.count() - distance) % self.hosts.count()
    }

    fn reduce(&self, builder: &mut ProgramBuilder, partials: &mut Partials, parts: &[Part]) {
        self.reduce_within(builder, partials, parts);
        let relayed = self.relayed(parts);
        match self.between {
            Between::Direct => self.reduce_direct(builder, partials, &relayed),
            Between::Ring => self.reduce_around(builder, partials, &relayed),
        }
    }

    /// What this host has of each chunk goes to its relay here.
    fn reduce_within(&self, builder: &mut ProgramBuilder, partials: &mut Partials, parts: &[Part]) {
        let farthest = self.neighbors().last().filter(|_| self.hosts.count() == 1);
        for part in parts {
            let relay = self.relay(self.host, *part);
            if relay != self.rank {
                builder.send(relay, partials.slot(part.chunk));
                continue;
            }
            for neighbor in self.neighbors() {
                partials.receive(builder, neighbor, part.chunk, Some(neighbor) == farthest);
            }
        }
    }

    /// What relays have of each chunk goes to its home.
    fn reduce_direct(
        &self,
        builder: &mut ProgramBuilder,
        partials: &mut Partials,
        relayed: &[Vec<Part>],
    ) {
        for distance in 1..self.hosts.count() {
            let (below, above) = (self.down(distance), self.up(distance));
            for part in &relayed[below as usize] {
                builder.send(self.relay(below, *part), partials.slot(part.chunk));
            }
            let last = distance == self.hosts.count() - 1;
            for part in &relayed[self.host as usize] {
                partials.receive(builder, self.relay(above, *part), part.chunk, last);
            }
        }
    }

    /// Chunks start one host after their homes, grow at every host and are complete at home.
    fn reduce_around(
        &self,
        builder: &mut ProgramBuilder,
        partials: &mut Partials,
        relayed: &[Vec<Part>],
    ) {
        let hosts = self.hosts.count();
        for distance in 1..hosts {
            for part in &relayed[self.down(distance) as usize] {
                builder.send(self.relay(self.up(1), *part), partials.slot(part.chunk));
            }
            for part in &relayed[self.down((distance + 1) % hosts) as usize] {
                let from = self.relay(self.down(1), *part);
                partials.receive(builder, from, part.chunk, distance == hosts - 1);
            }
        }
    }

    /// Complete chunks go from their homes, where they lie in `own`, to the other relays.
    fn gather_between(
        &self,
        builder: &mut ProgramBuilder,
        relayed: &[Vec<Part>],
        own: impl Fn(Part) -> Slot,
    ) {
        for distance in 1..self.hosts.count() {
            let (to, sent, from, received) = match self.between {
                Between::Direct => {
                    let (below, above) = (self.down(distance), self.up(distance));
                    (below, self.host, above, above)
                }
                Between::Ring => {
                    let (up, down) = (self.up(1), self.down(1));
                    (up, self.down(distance - 1), down, self.down(distance))
                }
            };
            for part in &relayed[sent as usize] {
                let source = if sent == self.host { own(*part) } else { Slot::output(part.chunk) };
                builder.send(self.relay(to, *part), source);
            }
            for part in &relayed[received as usize] {
                builder.receive(self.relay(from, *part), Slot::output(part.chunk));
            }
        }
    }

    /// Relays hand what they have to their hosts.
    ///
    /// With a codec, a chunk that is complete here becomes what all others decode as it is first
    /// sent to another host; only then may this host see it.
    fn gather_within(&self, builder: &mut ProgramBuilder, parts: &[Part]) {
        for part in parts {
            let relay = self.relay(self.host, *part);
            let slot = Slot::output(part.chunk);
            if relay != self.rank {
                builder.receive(relay, slot);
                continue;
            }
            let encoded = builder.first_send_of(slot);
            for neighbor in self.neighbors() {
                builder.push_after(StepKind::Send { to: neighbor, source: slot }, encoded);
            }
        }
    }
}
