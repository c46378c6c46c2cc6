//! Runs schedules on numbers, tile by tile, in random order, with one tile of scratch.
//!
//! The verifier argues about all orders; this tries some of them in the way an engine would.

mod cases;

use gradwire_schedule::{Buffer, Collective, Rank, Schedule, Slot, StepKind};
use proptest::prelude::Rng;
use proptest::test_runner::{RngAlgorithm, TestRng};

/// Tiles in every chunk, more than scratch holds at a time.
const TILES: usize = 3;

/// The value that a rank contributes to an element. Sums of these depend on the order.
fn contribution(rank: Rank, chunk: u32, tile: usize) -> f32 {
    let seed = (rank * 7919 + chunk * 104_729 + tile as u32 * 1299).wrapping_mul(2_654_435_761);
    (seed as f32 / 1e9).powi(5)
}

struct Machine<'a> {
    schedule: &'a Schedule,
    /// For each rank and step, the tiles done.
    done: Vec<Vec<usize>>,
    /// For each rank, the contents of input, output and scratch.
    memory: Vec<[Vec<[f32; TILES]>; 3]>,
    /// For each rank and step, the other side of its message.
    partner: Vec<Vec<Option<(usize, usize)>>>,
    /// For each rank and step, tiles on their way to it.
    wire: Vec<Vec<[Option<f32>; TILES]>>,
}

impl<'a> Machine<'a> {
    fn new(schedule: &'a Schedule) -> Self {
        let programs = &schedule.programs;
        let per_step = || programs.iter().map(|program| program.steps.len());
        let fill = |rank, chunks: usize| -> Vec<[f32; TILES]> {
            let element = |chunk, tile| contribution(rank, chunk as u32, tile);
            (0..chunks).map(|chunk| std::array::from_fn(|tile| element(chunk, tile))).collect()
        };
        let memory = programs
            .iter()
            .map(|program| {
                let (input, output) =
                    (program.input_chunks as usize, program.output_chunks as usize);
                let scratch = vec![[f32::NAN; TILES]; program.scratch.len()];
                [fill(program.rank, input), fill(program.rank, output), scratch]
            })
            .collect();
        Self {
            schedule,
            done: per_step().map(|steps| vec![0; steps]).collect(),
            memory,
            partner: partners(schedule),
            wire: per_step().map(|steps| vec![[None; TILES]; steps]).collect(),
        }
    }

    fn kind(&self, rank: usize, step: usize) -> StepKind {
        self.schedule.programs[rank].steps[step].kind
    }

    /// Whether the step's next tile may run.
    fn ready(&self, rank: usize, step: usize) -> bool {
        let tile = self.done[rank][step];
        let steps = &self.schedule.programs[rank].steps;
        if tile == TILES {
            return false;
        }
        let waits = steps[step].after.iter().all(|&after| self.done[rank][after as usize] > tile);
        let moves = match self.partner[rank][step] {
            Some(_) if steps[step].kind.receives_from().is_some() => {
                self.wire[rank][step][tile].is_some()
            }
            // The wire holds one tile of each message.
            Some((to, receive)) => self.done[to][receive] >= tile,
            None => true,
        };
        waits && moves && self.has_room(rank, step, tile)
    }

    /// A scratch tile is refilled when every step that touches it is done with the tile before.
    fn has_room(&self, rank: usize, step: usize, tile: usize) -> bool {
        let kind = self.kind(rank, step);
        let Some(slot) = kind.writes().filter(|slot| slot.buffer == Buffer::Scratch) else {
            return true;
        };
        if kind.reads().any(|read| read == slot) {
            return true;
        }
        let steps = self.schedule.programs[rank].steps.iter().enumerate();
        let mut touching = steps.filter(|(_, other)| {
            other.kind.reads().chain(other.kind.writes()).any(|touched| touched == slot)
        });
        touching.all(|(other, _)| self.done[rank][other] >= tile)
    }

    fn at(&mut self, rank: usize, slot: Slot, tile: usize) -> &mut f32 {
        let scratch = slot.buffer == Buffer::Scratch;
        let buffer = match slot.buffer {
            Buffer::Input => 0,
            Buffer::Output => 1,
            Buffer::Scratch => 2,
        };
        // One tile of scratch serves all tiles of a chunk.
        let tile = if scratch { 0 } else { tile };
        &mut self.memory[rank][buffer][slot.chunk as usize][tile]
    }

    fn run(&mut self, rank: usize, step: usize) {
        let tile = self.done[rank][step];
        let received = self.wire[rank][step][tile].unwrap_or(f32::NAN);
        let (destination, value) = match self.kind(rank, step) {
            StepKind::Send { source, .. } => {
                let value = *self.at(rank, source, tile);
                if let Some((to, receive)) = self.partner[rank][step] {
                    self.wire[to][receive][tile] = Some(value);
                }
                self.done[rank][step] += 1;
                return;
            }
            StepKind::Receive { destination, .. } => (destination, received),
            StepKind::ReceiveReduce { local, destination, .. } => {
                (destination, *self.at(rank, local, tile) + received)
            }
            StepKind::Reduce { source, local, destination, .. } => {
                (destination, *self.at(rank, local, tile) + *self.at(rank, source, tile))
            }
            StepKind::Copy { source, destination } => (destination, *self.at(rank, source, tile)),
        };
        *self.at(rank, destination, tile) = value;
        self.done[rank][step] += 1;
    }

    /// Runs ready tiles in random order until none is left. True if all are done.
    fn finish(&mut self, random: &mut TestRng) -> bool {
        let all: Vec<(usize, usize)> = (0..self.done.len())
            .flat_map(|rank| (0..self.done[rank].len()).map(move |step| (rank, step)))
            .collect();
        let mut open = all;
        while !open.is_empty() {
            let start = random.next_u32() as usize % open.len();
            let turn = (0..open.len()).map(|offset| (start + offset) % open.len());
            let found = turn.into_iter().find(|&index| self.ready(open[index].0, open[index].1));
            let Some(index) = found else { return false };
            let (rank, step) = open[index];
            self.run(rank, step);
            if self.done[rank][step] == TILES {
                open.swap_remove(index);
            }
        }
        true
    }
}

fn partners(schedule: &Schedule) -> Vec<Vec<Option<(usize, usize)>>> {
    let programs = &schedule.programs;
    let mut partner: Vec<Vec<_>> =
        programs.iter().map(|program| vec![None; program.steps.len()]).collect();
    for from in 0..programs.len() {
        for to in 0..programs.len() {
            let sends = (0..programs[from].steps.len())
                .filter(|&step| programs[from].steps[step].kind.sends_to() == Some(to as Rank));
            let receives = (0..programs[to].steps.len()).filter(|&step| {
                programs[to].steps[step].kind.receives_from() == Some(from as Rank)
            });
            for (send, receive) in sends.zip(receives) {
                partner[from][send] = Some((to, receive));
                partner[to][receive] = Some((from, send));
            }
        }
    }
    partner
}

/// What a rank's output tile must be, as a sum of contributions; nothing where it is not specified.
fn expected(
    collective: Collective,
    ranks: Rank,
    rank: Rank,
    chunk: u32,
    tile: usize,
) -> Option<f64> {
    let sum = |chunk| (0..ranks).map(|rank| f64::from(contribution(rank, chunk, tile))).sum();
    let one = |rank, chunk| f64::from(contribution(rank, chunk, tile));
    match collective {
        Collective::AllReduce => Some(sum(chunk)),
        Collective::Reduce { root } if rank == root => Some(sum(chunk)),
        Collective::Reduce { .. } => Some(one(rank, chunk)),
        Collective::Broadcast { root } => Some(one(root, chunk)),
        Collective::ReduceScatter => Some(sum(rank)),
        Collective::AllGather | Collective::Gather { .. } => Some(one(chunk, 0)),
        Collective::Scatter { root } => Some(one(root, rank)),
        Collective::AllToAll => Some(one(chunk, rank)),
        Collective::SendReceive { from, .. } => Some(one(from, 0)),
        Collective::Barrier => None,
    }
}

#[test]
fn random_orders_give_the_right_result_and_the_same_bits() {
    for ranks in 1..=17 {
        for (algorithm, collective) in cases::pairs(&[0, ranks - 1]) {
            let schedule = Schedule::build(collective, algorithm, ranks).unwrap();
            try_random_orders(&schedule, &format!("{collective} by {algorithm}, {ranks} ranks"));
        }
        for hosts in cases::layouts(ranks) {
            for (name, schedule) in cases::on_hosts(&hosts) {
                try_random_orders(&schedule, &name);
            }
        }
    }
}

fn try_random_orders(schedule: &Schedule, name: &str) {
    let mut first: Option<Vec<Vec<[u32; TILES]>>> = None;
    for seed in 0..4u8 {
        let mut random = TestRng::from_seed(RngAlgorithm::ChaCha, &[seed; 32]);
        let mut machine = Machine::new(schedule);
        assert!(machine.finish(&mut random), "{name}, seed {seed}: stuck");
        check(&machine, name);
        let bits: Vec<Vec<[u32; TILES]>> = machine
            .memory
            .iter()
            .map(|[_, output, _]| output.iter().map(|t| t.map(f32::to_bits)).collect())
            .collect();
        if schedule.collective == Collective::AllReduce {
            assert!(bits.iter().all(|rank| *rank == bits[0]), "{name}: bits differ");
        }
        if schedule.collective != Collective::Barrier {
            assert_eq!(*first.get_or_insert(bits.clone()), bits, "{name}, seed {seed}");
        }
    }
}

fn check(machine: &Machine<'_>, name: &str) {
    let Schedule { collective, programs, .. } = machine.schedule;
    let ranks = programs.len() as Rank;
    for (rank, [_, output, _]) in (0..).zip(&machine.memory) {
        for (chunk, tiles) in (0..).zip(output) {
            for (tile, &found) in tiles.iter().enumerate() {
                let Some(wanted) = expected(*collective, ranks, rank, chunk, tile) else {
                    continue;
                };
                let error = (f64::from(found) - wanted).abs();
                assert!(error <= 1e-3 * wanted.abs().max(1.0), "{name}: rank {rank} chunk {chunk}");
            }
        }
    }
}
