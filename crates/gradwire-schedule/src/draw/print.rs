//! A schedule as text.

use std::fmt::Write;

use crate::flow::{Flow, Node};
use crate::rounds::Rounds;
use crate::{Schedule, Step};

/// A table of every rank's steps: number, round, the steps it waits for, what it does.
///
/// A step's round is the number of messages in the longest chain that ends with it.
pub fn print(schedule: &Schedule) -> String {
    let rounds = Rounds::along(schedule, &Flow::of(schedule));
    let mut text = headline(schedule);
    text.push('\n');
    for (rank, program) in (0..).zip(&schedule.programs) {
        let (input, output) = (program.input_chunks, program.output_chunks);
        let scratch = program.scratch.len();
        let chunks = format!("chunks: input {input}, output {output}, scratch {scratch}");
        let _ = writeln!(text, "\nrank {rank}  ({chunks})");
        let waits: Vec<String> = program.steps.iter().map(waits).collect();
        let width = waits.iter().map(String::len).max().unwrap_or(0).clamp(5, 24);
        let _ = writeln!(text, "  step  round  {:width$}  what", "after");
        for (step, (body, waits)) in (0..).zip(program.steps.iter().zip(&waits)) {
            let round = rounds.shown(Node { rank, step }, &body.kind);
            let _ = writeln!(text, "  {step:>4}  {round:>5}  {waits:width$}  {}", body.kind);
        }
    }
    text
}

/// One line that says what the schedule is and costs.
pub(super) fn headline(schedule: &Schedule) -> String {
    let summary = schedule.summary();
    let count = |count: usize, noun: &str| match count {
        1 => format!("1 {noun}"),
        _ => format!("{count} {noun}s"),
    };
    format!(
        "{} by {}: {}, {}, {}, {}; the busiest rank sends {:.4} of the tensor",
        schedule.collective,
        schedule.algorithm,
        count(schedule.programs.len(), "rank"),
        count(schedule.tensor_chunks() as usize, "chunk"),
        count(summary.rounds as usize, "round"),
        count(summary.messages, "message"),
        summary.most_sent()
    )
}

fn waits(step: &Step) -> String {
    let steps: Vec<String> = step.after.iter().map(u32::to_string).collect();
    if steps.is_empty() { "-".to_owned() } else { steps.join(" ") }
}
