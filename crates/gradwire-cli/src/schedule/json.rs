//! A schedule as one JSON object.

use gradwire_schedule::{Program, Schedule, Slot, Step, StepKind};
use serde_json::{Value, json};

/// The whole schedule: what it is, what it costs, and each rank's steps. Slots are written as
/// `output[1]`, steps refer to each other by their position in the rank's list.
pub fn document(schedule: &Schedule) -> Value {
    let summary = schedule.summary();
    json!({
        "collective": schedule.collective.to_string(),
        "algorithm": schedule.algorithm.name(),
        "ranks": schedule.ranks(),
        "tensor_chunks": schedule.tensor_chunks(),
        "rounds": summary.rounds,
        "messages": summary.messages,
        "busiest_rank_sends": summary.most_sent(),
        "programs": schedule.programs.iter().enumerate().map(program).collect::<Vec<_>>(),
    })
}

fn program((rank, program): (usize, &Program)) -> Value {
    json!({
        "rank": rank,
        "input_chunks": program.input_chunks,
        "output_chunks": program.output_chunks,
        "scratch_chunks": program.scratch.len(),
        "steps": program.steps.iter().map(step).collect::<Vec<_>>(),
    })
}

fn step(step: &Step) -> Value {
    let mut value = kind(&step.kind);
    value["after"] = json!(step.after);
    value
}

fn kind(kind: &StepKind) -> Value {
    let slot = Slot::to_string;
    match kind {
        StepKind::Send { to, source } => {
            json!({ "kind": "send", "to": to, "source": slot(source) })
        }
        StepKind::Receive { from, destination } => {
            json!({ "kind": "receive", "from": from, "destination": slot(destination) })
        }
        StepKind::ReceiveReduce { from, local, destination, last } => json!({
            "kind": "receive_reduce",
            "from": from,
            "local": slot(local),
            "destination": slot(destination),
            "last": last,
        }),
        StepKind::Reduce { source, local, destination, last } => json!({
            "kind": "reduce",
            "source": slot(source),
            "local": slot(local),
            "destination": slot(destination),
            "last": last,
        }),
        StepKind::Copy { source, destination } => json!({
            "kind": "copy",
            "source": slot(source),
            "destination": slot(destination),
        }),
    }
}
