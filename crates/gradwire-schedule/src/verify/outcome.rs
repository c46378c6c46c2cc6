//! Whether the end is what the collective promises.

use super::ScheduleFault;
use super::values::{Content, End, RankSet};
use crate::flow::{Flow, Node, Numbering};
use crate::{Collective, Rank, Schedule, Slot};

/// What an output slot must hold at the end.
#[derive(Clone, Copy)]
enum Expected {
    /// One rank's chunk.
    Contribution { rank: Rank, chunk: u32 },
    /// All ranks' contributions of a chunk.
    Reduction { chunk: u32 },
}

impl Expected {
    fn of(collective: Collective, rank: Rank, chunk: u32) -> Option<Self> {
        match collective {
            Collective::AllReduce => Some(Self::Reduction { chunk }),
            Collective::Reduce { root } => (rank == root).then_some(Self::Reduction { chunk }),
            Collective::Broadcast { root } => Some(Self::Contribution { rank: root, chunk }),
            Collective::ReduceScatter => Some(Self::Reduction { chunk: rank }),
            Collective::AllGather | Collective::Gather { .. } => {
                Some(Self::Contribution { rank: chunk, chunk: 0 })
            }
            Collective::Scatter { root } => Some(Self::Contribution { rank: root, chunk: rank }),
            Collective::AllToAll => Some(Self::Contribution { rank: chunk, chunk: rank }),
            Collective::Barrier => None,
            Collective::SendReceive { from, .. } => {
                Some(Self::Contribution { rank: from, chunk: 0 })
            }
        }
    }

    fn is(self, content: &Content, ranks: Rank) -> bool {
        match self {
            Self::Contribution { rank, chunk } => {
                content.chunk == chunk && content.ranks == RankSet::of(rank, ranks)
            }
            Self::Reduction { chunk } => content.chunk == chunk && content.ranks.len() == ranks,
        }
    }

    fn describe(self) -> String {
        match self {
            Self::Contribution { rank, chunk } => format!("chunk {chunk} of rank {rank}"),
            Self::Reduction { chunk } => format!("chunk {chunk} of all ranks"),
        }
    }
}

fn describe(content: Option<&Content>) -> String {
    let Some(content) = content else { return "nothing".to_owned() };
    let ranks: Vec<String> = content.ranks.members().map(|rank| rank.to_string()).collect();
    match ranks.len() {
        1 => format!("chunk {} of rank {}", content.chunk, ranks[0]),
        _ => format!("chunk {} of ranks {}", content.chunk, ranks.join(", ")),
    }
}

pub(super) fn check(schedule: &Schedule, end: &End) -> Result<(), ScheduleFault> {
    for (rank, outputs) in (0..).zip(&end.outputs) {
        for (chunk, &value) in (0..).zip(outputs) {
            let slot = Slot::output(chunk);
            let Some(expected) = Expected::of(schedule.collective, rank, chunk) else { continue };
            let content = value.map(|value| end.expressions.content(value));
            if !content.is_some_and(|content| expected.is(content, schedule.ranks())) {
                let (expected, found) = (expected.describe(), describe(content));
                return Err(ScheduleFault::Outcome { rank, slot, expected, found });
            }
            let same = schedule.collective != Collective::AllReduce
                || value == end.outputs[0][chunk as usize];
            if !same {
                return Err(ScheduleFault::Order { rank, slot });
            }
        }
    }
    Ok(())
}

/// Every rank's steps, taken together, come after a step (or the start) of every other rank.
pub(super) fn check_barrier(schedule: &Schedule, flow: &Flow) -> Result<(), ScheduleFault> {
    if schedule.collective != Collective::Barrier {
        return Ok(());
    }
    let ranks = schedule.ranks();
    let numbering = Numbering::new(schedule);
    let mut sender = vec![None; numbering.len()];
    for message in &flow.messages {
        sender[numbering.number(message.receive)] = Some(numbering.number(message.send));
    }
    let mut heard: Vec<Option<RankSet>> = vec![None; numbering.len()];
    let mut in_the_end: Vec<RankSet> = (0..ranks).map(|rank| RankSet::of(rank, ranks)).collect();
    for &node in &flow.order {
        let number = numbering.number(node);
        let step = &schedule.programs[node.rank as usize].steps[node.step as usize];
        let local = step.after.iter().map(|&step| numbering.number(Node { step, ..node }));
        let mut known = RankSet::of(node.rank, ranks);
        for earlier in local.chain(sender[number]) {
            heard[earlier].iter().for_each(|earlier| known.add(earlier));
        }
        in_the_end[node.rank as usize].add(&known);
        heard[number] = Some(known);
    }
    for (rank, heard) in (0..).zip(&in_the_end) {
        let missing = (0..).zip(heard.members()).find(|(expected, member)| expected != member);
        let unheard = missing.map_or(heard.len(), |(expected, _)| expected);
        if unheard < ranks {
            return Err(ScheduleFault::Barrier { rank, unheard });
        }
    }
    Ok(())
}
