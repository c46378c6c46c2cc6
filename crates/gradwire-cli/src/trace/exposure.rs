//! How much of a rank's communication its computation does not hide.

use std::collections::{BTreeSet, HashSet};

use serde::Serialize;

use super::intervals::Intervals;
use super::read::RankTrace;

/// Spans of these categories make their thread one that computes.
const COMPUTING: [&str; 5] = ["step", "forward", "backward", "optimizer", "wait"];

/// How exposed communication was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// By the waits of threads that compute.
    Waits,
    /// Nobody waits but futures: from the last submission of a burst to its end.
    Bursts,
    /// Some operations are waited for by threads that compute, others by futures.
    WaitsAndBursts,
}

/// When a rank communicates, and when its computation stands still for it.
#[derive(Debug)]
pub struct Exposure {
    /// What is looked at: the steps, or all of the trace if there are none.
    pub window: Intervals,
    /// With an operation in flight.
    pub in_flight: Intervals,
    /// The part of it that is not hidden.
    pub exposed: Intervals,
    pub method: Method,
}

/// The steps of a rank, in order.
pub fn steps(trace: &RankTrace) -> Vec<(i64, i64)> {
    let spans = trace.spans.iter().filter(|span| span.category == "step");
    let mut steps: Vec<(i64, i64)> = spans.map(|span| (span.start, span.end)).collect();
    steps.sort_unstable();
    steps
}

impl Exposure {
    pub fn of(trace: &RankTrace) -> Self {
        let steps = steps(trace);
        let window = match steps[..] {
            [] => Intervals::union([(trace.began, trace.ended)]),
            _ => Intervals::union(steps),
        };
        let in_flight = Intervals::union(trace.operations.iter().map(|it| (it.start, it.end)));
        let in_flight = in_flight.intersect(&window);
        let waits = Intervals::union(waits(trace)).intersect(&in_flight);
        let declares_waits = trace.spans.iter().any(|span| span.category == "wait");
        let tails = if declares_waits { Vec::new() } else { tails(trace) };
        let tails = Intervals::union(tails).intersect(&in_flight);
        let method = match (waits.total(), tails.total()) {
            (_, 0) => Method::Waits,
            (0, _) => Method::Bursts,
            _ => Method::WaitsAndBursts,
        };
        let exposed = Intervals::union(waits.iter().chain(tails.iter()));
        Exposure { window, in_flight, exposed, method }
    }
}

/// Threads whose waits stop the computation: those with spans of it, or else those that drove the
/// engine while they waited.
fn computing_threads(trace: &RankTrace) -> BTreeSet<u64> {
    let spans = trace.spans.iter().filter(|span| COMPUTING.contains(&span.category.as_str()));
    let threads: BTreeSet<u64> = spans.map(|span| span.thread).collect();
    if threads.is_empty() {
        let driving = trace.waits.iter().filter(|wait| wait.drives && wait.start < wait.end);
        driving.map(|wait| wait.thread).collect()
    } else {
        threads
    }
}

/// Waits that stop the computation.
fn waits(trace: &RankTrace) -> Vec<(i64, i64)> {
    let threads = computing_threads(trace);
    let own = trace.spans.iter().filter(|span| span.category == "wait");
    let in_engine = trace.waits.iter().filter(|wait| threads.contains(&wait.thread));
    own.map(|span| (span.start, span.end))
        .chain(in_engine.map(|wait| (wait.start, wait.end)))
        .collect()
}

/// Of the bursts of operations that futures alone wait for: from the last submission to the end.
fn tails(trace: &RankTrace) -> Vec<(i64, i64)> {
    let threads = computing_threads(trace);
    let (mut by_threads, mut by_futures) = (HashSet::new(), HashSet::new());
    for wait in &trace.waits {
        let is_of_computation = threads.contains(&wait.thread);
        if is_of_computation { &mut by_threads } else { &mut by_futures }.insert(wait.operation);
    }
    let awaited: Vec<(i64, i64)> = trace
        .operations
        .iter()
        .filter(|it| by_futures.contains(&it.id) && !by_threads.contains(&it.id))
        .map(|it| (it.start, it.end))
        .collect();
    let bursts = Intervals::union(awaited.iter().copied());
    bursts
        .iter()
        .map(|(start, end)| {
            let submissions = awaited.iter().filter(|it| (start..end).contains(&it.0));
            (submissions.map(|it| it.0).max().unwrap_or(start), end)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::read::fixture::{operation, rank, span, wait};

    fn total(trace: &RankTrace) -> (i64, i64, Method) {
        let exposure = Exposure::of(trace);
        (exposure.in_flight.total(), exposure.exposed.total(), exposure.method)
    }

    #[test]
    fn what_the_computation_waits_for_is_exposed() {
        let mut trace = rank(0);
        trace.operations = vec![operation(7, 10, 100)];
        trace.waits = vec![wait(7, 1, true, 60, 110)];
        assert_eq!(total(&trace), (90, 40, Method::Waits));
        // The waits of a thread beside the one that computes are like those of futures.
        trace.spans = vec![span("forward", 2, 0, 50)];
        assert_eq!(total(&trace), (90, 90, Method::Bursts));
        trace.operations.push(operation(8, 60, 80));
        trace.waits.push(wait(8, 2, true, 70, 80));
        assert_eq!(total(&trace), (90, 90, Method::WaitsAndBursts));
    }

    #[test]
    fn of_what_futures_wait_for_the_end_of_the_burst_is_exposed() {
        let mut trace = rank(0);
        trace.spans = vec![span("step", 1, 0, 90), span("backward", 1, 0, 60)];
        trace.operations = vec![operation(1, 0, 50), operation(2, 30, 100), operation(3, 120, 130)];
        trace.waits = vec![wait(1, 9, false, 5, 50), wait(2, 9, false, 50, 100)];
        // From 30 to the step's end; what comes after it does not count.
        assert_eq!(total(&trace), (90, 60, Method::Bursts));
        // Who says when it waits knows better.
        trace.spans.push(span("wait", 1, 80, 95));
        assert_eq!(total(&trace), (90, 10, Method::Waits));
    }
}
