//! A step as a timeline in the format of Perfetto and Chrome's trace viewer.

use serde_json::{Value, json};

use crate::step::Report;
use crate::step::pipeline::{Kind, Span};

/// Most passes that are written: viewers get slow beyond.
const MAX_SPANS: usize = 200_000;

/// One JSON document in the trace event format; a track for each pipeline stage, one for what comes
/// after the last pass.
pub fn trace(report: &Report) -> Value {
    let mut events: Vec<Value> = report.spans.iter().take(MAX_SPANS).map(pass).collect();
    let stages = report.spans.iter().map(|span| span.stage + 1).max().unwrap_or(1);
    events.extend((0..stages).map(|stage| name(stage, &format!("stage {stage}"))));
    events.push(name(stages, "after the passes"));
    let mut at = report.spans.iter().map(|span| span.end).fold(0.0, f64::max);
    for (what, seconds) in [
        ("exchange between copies (exposed)", report.data.exposed_s + report.slowdown_s),
        ("optimizer", report.optimizer_s),
    ] {
        events.push(event(what, "step", stages, at, seconds));
        at += seconds;
    }
    json!({ "traceEvents": events, "displayTimeUnit": "ms" })
}

fn pass(span: &Span) -> Value {
    let (what, kind) = match span.kind {
        Kind::Forward => ("F", "forward"),
        Kind::Backward => ("B", "backward"),
        Kind::Weights => ("W", "weights"),
    };
    let chunk = if span.chunk > 0 { format!(" chunk {}", span.chunk) } else { String::new() };
    let title = format!("{what}{}{chunk}", span.micro_batch);
    event(&title, kind, span.stage, span.start, span.end - span.start)
}

fn event(name: &str, category: &str, thread: u32, start: f64, seconds: f64) -> Value {
    json!({
        "name": name,
        "cat": category,
        "ph": "X",
        "pid": 0,
        "tid": thread,
        "ts": start * 1e6,
        "dur": seconds * 1e6,
    })
}

fn name(thread: u32, name: &str) -> Value {
    json!({
        "name": "thread_name",
        "ph": "M",
        "pid": 0,
        "tid": thread,
        "args": { "name": name },
    })
}
