//! Logical time: how many messages deep each step lies.

use crate::flow::{Flow, Node, Numbering};
use crate::{Schedule, StepKind};

/// The round of each step, where a message takes one round and everything else no time.
pub(crate) struct Rounds {
    numbering: Numbering,
    round: Vec<u32>,
    /// The number of rounds.
    pub(crate) count: u32,
}

impl Rounds {
    /// Steps that can never run are in round 0.
    pub(crate) fn of(schedule: &Schedule) -> Self {
        Self::along(schedule, &Flow::of(schedule))
    }

    /// As [`Rounds::of`], with the flow at hand.
    pub(crate) fn along(schedule: &Schedule, flow: &Flow) -> Self {
        let numbering = Numbering::new(schedule);
        let mut round = vec![0; numbering.len()];
        let mut arrival = vec![None; numbering.len()];
        for message in &flow.messages {
            arrival[numbering.number(message.receive)] = Some(numbering.number(message.send));
        }
        for &node in &flow.order {
            let steps = &schedule.programs[node.rank as usize].steps;
            // Broken schedules can be drawn too: what isn't there is not waited for.
            let after = steps[node.step as usize].after.iter().copied();
            let after = after.filter(|&earlier| (earlier as usize) < steps.len());
            let earlier = after.map(|step| round[numbering.number(Node { step, ..node })]);
            let local = earlier.max().unwrap_or(0);
            let number = numbering.number(node);
            let remote = arrival[number].map_or(0, |send| round[send] + 1);
            round[number] = local.max(remote);
        }
        let count = round.iter().copied().max().unwrap_or(0);
        Self { numbering, round, count }
    }

    /// For a send the number of rounds before it, for any other step the number of rounds after
    /// which it is done.
    pub(crate) fn of_step(&self, node: Node) -> u32 {
        self.round[self.numbering.number(node)]
    }

    /// The round in which a step takes place, counted from 1, as people read it.
    pub(crate) fn shown(&self, node: Node, kind: &StepKind) -> u32 {
        self.of_step(node) + u32::from(kind.sends_to().is_some())
    }
}
