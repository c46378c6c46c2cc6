//! Where the parts of a drawing go.

use std::collections::HashMap;

use crate::flow::{Flow, Node, Numbering};
use crate::rounds::Rounds;
use crate::{Collective, Rank, Schedule, Slot, StepKind};

/// Messages from one rank to another in one round, drawn as one arrow.
pub(super) struct Arrow {
    pub(super) from: Rank,
    pub(super) to: Rank,
    /// The row in which it starts.
    pub(super) start: usize,
    /// The row at whose end it arrives.
    pub(super) end: usize,
    /// The chunks that are sent, in order.
    pub(super) chunks: Vec<u32>,
    /// Whether the receiver reduces what comes.
    pub(super) reduces: bool,
}

/// Arrows by rows. A round has as many rows as its busiest rank has arrows, as if a rank sent
/// them one after the other.
pub(super) struct Layout {
    pub(super) arrows: Vec<Arrow>,
    /// For each round, its first row; and the number of rows.
    pub(super) round_starts: Vec<usize>,
}

impl Layout {
    pub(super) fn of(schedule: &Schedule) -> Self {
        let flow = Flow::of(schedule);
        let rounds = Rounds::along(schedule, &flow);
        let mut found = bundle(schedule, &flow, &rounds);
        found.sort_by_key(|placed| (placed.round, placed.arrow.from, placed.first_step));
        let mut rows = vec![0; rounds.count as usize];
        let mut previous = None;
        for placed in &mut found {
            let sender = (placed.round, placed.arrow.from);
            let (_, row) = previous.filter(|&(last, _)| last == sender).unwrap_or((sender, 0));
            placed.arrow.start = row;
            rows[placed.round] = rows[placed.round].max(row + 1);
            previous = Some((sender, row + 1));
        }
        let mut round_starts = vec![0];
        for count in rows {
            round_starts.push(round_starts[round_starts.len() - 1] + count);
        }
        let arrows = found.into_iter().map(|placed| placed.in_rows(&round_starts)).collect();
        Self { arrows, round_starts }
    }

    pub(super) fn rows(&self) -> usize {
        self.round_starts[self.round_starts.len() - 1]
    }
}

struct Placed {
    arrow: Arrow,
    round: usize,
    arrival: usize,
    first_step: u32,
}

impl Placed {
    /// Turns the row within the round into a row of the drawing.
    fn in_rows(self, round_starts: &[usize]) -> Arrow {
        let start = round_starts[self.round] + self.arrow.start;
        let waits = self.arrival > self.round + 1;
        let end = if waits { round_starts[self.arrival] - 1 } else { start };
        Arrow { start, end, ..self.arrow }
    }
}

fn bundle(schedule: &Schedule, flow: &Flow, rounds: &Rounds) -> Vec<Placed> {
    let kind = |node: Node| &schedule.programs[node.rank as usize].steps[node.step as usize].kind;
    let numbering = Numbering::new(schedule);
    let chunks = chunks_sent(schedule, flow, &numbering);
    let mut bundles: Vec<Placed> = Vec::new();
    for message in &flow.messages {
        let (send, receive) = (message.send, message.receive);
        let round = rounds.of_step(send) as usize;
        let arrival = (rounds.of_step(receive) as usize).max(round + 1).min(rounds.count as usize);
        let reduces = matches!(kind(receive), StepKind::ReceiveReduce { .. });
        let chunk = chunks[numbering.number(send)];
        let joins = bundles.last_mut().filter(|last| {
            let arrow = &last.arrow;
            (arrow.from, arrow.to, last.round, last.arrival, arrow.reduces)
                == (send.rank, receive.rank, round, arrival, reduces)
        });
        match joins {
            Some(last) => last.arrow.chunks.push(chunk),
            None => bundles.push(Placed {
                arrow: Arrow {
                    from: send.rank,
                    to: receive.rank,
                    start: 0,
                    end: 0,
                    chunks: vec![chunk],
                    reduces,
                },
                round,
                arrival,
                first_step: send.step,
            }),
        }
    }
    bundles.retain(|placed| placed.round < rounds.count as usize);
    bundles.iter_mut().for_each(|placed| placed.arrow.chunks.sort_unstable());
    bundles
}

/// For each step that sends, which chunk of the whole tensor it sends: followed from the start.
fn chunks_sent(schedule: &Schedule, flow: &Flow, numbering: &Numbering) -> Vec<u32> {
    let mut sent = vec![0; numbering.len()];
    let mut sender = vec![None; numbering.len()];
    for message in &flow.messages {
        sender[numbering.number(message.receive)] = Some(numbering.number(message.send));
    }
    let mut held: HashMap<(Rank, Slot), u32> = HashMap::new();
    let start = |rank: Rank, slot: Slot| match schedule.collective {
        Collective::AllGather | Collective::Gather { .. } => rank,
        _ => slot.chunk,
    };
    for &node in &flow.order {
        let kind = schedule.programs[node.rank as usize].steps[node.step as usize].kind;
        let number = numbering.number(node);
        let local = kind.reads().next().map(|slot| {
            held.get(&(node.rank, slot)).copied().unwrap_or_else(|| start(node.rank, slot))
        });
        let received = sender[number].map(|send: usize| sent[send]);
        let chunk = local.or(received).unwrap_or(0);
        match kind.writes() {
            Some(slot) => drop(held.insert((node.rank, slot), chunk)),
            None => sent[number] = chunk,
        }
    }
    sent
}
