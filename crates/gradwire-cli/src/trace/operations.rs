//! Where the time of each layer, bucket or operation went.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;

use super::exposure::{Exposure, steps};
use super::intervals::Intervals;
use super::read::{Operation, RankTrace, Traces};

/// Operations that are one thing to the reader: of one label, or at one place in every step, or
/// alike. Sums over steps and ranks.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Row {
    pub name: String,
    pub operations: u64,
    /// Bytes of the tensors.
    pub bytes: u64,
    /// Seconds in flight.
    pub in_flight_s: f64,
    /// Seconds in which no tile of it was on a wire or at work here.
    pub queue_s: f64,
    /// Seconds with a tile on a wire.
    pub wire_s: f64,
    /// Seconds in which tiles were reduced, encoded or decoded.
    pub reduce_s: f64,
    /// Its share of the hidden communication; operations in flight at once share the time.
    pub hidden_s: f64,
    /// Its share of the exposed communication.
    pub exposed_s: f64,
    pub failed: u64,
}

/// All rows, the most exposed first.
pub fn rows(traces: &Traces, exposures: &[Exposure]) -> Vec<Row> {
    let mut rows: BTreeMap<String, Row> = BTreeMap::new();
    for (trace, exposure) in traces.ranks.iter().zip(exposures) {
        let names = names(trace);
        let shares = shares(&trace.operations, exposure);
        let parts = parts(trace);
        for (at, operation) in trace.operations.iter().enumerate() {
            let Some(name) = &names[at] else { continue };
            let row = rows.entry(name.clone()).or_default();
            row.name.clone_from(name);
            let [queue, wire, reduce] = parts[at];
            row.operations += 1;
            row.bytes += operation.bytes;
            row.failed += u64::from(operation.failed);
            row.in_flight_s += seconds(operation.end - operation.start);
            row.queue_s += seconds(queue);
            row.wire_s += seconds(wire);
            row.reduce_s += seconds(reduce);
            row.hidden_s += shares[at].0;
            row.exposed_s += shares[at].1;
        }
    }
    let mut rows: Vec<Row> = rows.into_values().collect();
    rows.sort_by(|a, b| {
        (b.exposed_s, b.in_flight_s).partial_cmp(&(a.exposed_s, a.in_flight_s)).expect("no NaN")
    });
    rows
}

fn seconds(nanoseconds: i64) -> f64 {
    nanoseconds as f64 / 1e9
}

/// What to call each operation; `None` for those outside of all steps, if there are steps.
fn names(trace: &RankTrace) -> Vec<Option<String>> {
    let steps = steps(trace);
    let mut order: Vec<usize> = (0..trace.operations.len()).collect();
    order.sort_by_key(|at| trace.operations[*at].start);
    let mut names = vec![None; trace.operations.len()];
    let (mut step, mut place) = (None, 0);
    for at in order {
        let operation = &trace.operations[at];
        let within = steps.iter().rposition(|(start, _)| *start <= operation.start);
        let within = within.filter(|step| operation.start < steps[*step].1);
        if within != step {
            (step, place) = (within, 0);
        }
        place += 1;
        names[at] = match &operation.label {
            _ if !steps.is_empty() && within.is_none() => None,
            Some(label) => Some(label.clone()),
            None if steps.is_empty() => Some(operation.what.clone()),
            None => Some(format!("{place:>3} {}", operation.what)),
        };
    }
    names
}

/// Of each operation: time in the queue, on the wire, and at work.
fn parts(trace: &RankTrace) -> Vec<[i64; 3]> {
    let places: HashMap<u32, usize> =
        trace.operations.iter().enumerate().map(|(at, it)| (it.key, at)).collect();
    let mut spans: Vec<[Vec<(i64, i64)>; 2]> = Vec::new();
    spans.resize_with(trace.operations.len(), Default::default);
    for tile in &trace.tiles {
        if let Some(at) = places.get(&tile.key) {
            spans[*at][0].push((tile.start, tile.end));
        }
    }
    for work in &trace.works {
        if let Some(at) = places.get(&work.key) {
            spans[*at][1].push((work.start, work.end));
        }
    }
    let parts = trace.operations.iter().zip(spans).map(|(operation, [wire, work])| {
        let own = Intervals::union([(operation.start, operation.end)]);
        let moving = Intervals::union(wire.iter().chain(&work).copied());
        let queue = own.total() - moving.intersect(&own).total();
        let within = |spans| Intervals::union(spans).intersect(&own).total();
        [queue, within(wire), within(work)]
    });
    parts.collect()
}

/// Each operation's share of the hidden and of the exposed communication, in seconds. They add up
/// to the rank's.
fn shares(operations: &[Operation], exposure: &Exposure) -> Vec<(f64, f64)> {
    let mut bounds: Vec<i64> = operations.iter().flat_map(|it| [it.start, it.end]).collect();
    for intervals in [&exposure.exposed, &exposure.in_flight] {
        bounds.extend(intervals.iter().flat_map(|(start, end)| [start, end]));
    }
    bounds.sort_unstable();
    bounds.dedup();
    let mut order: Vec<usize> = (0..operations.len()).collect();
    order.sort_by_key(|at| operations[*at].start);
    let mut coming = order.into_iter().peekable();
    let mut active: Vec<usize> = Vec::new();
    let mut shares = vec![(0.0, 0.0); operations.len()];
    for pair in bounds.windows(2) {
        let (start, end) = (pair[0], pair[1]);
        active.retain(|at| operations[*at].end > start);
        while let Some(at) = coming.next_if(|at| operations[*at].start <= start) {
            if operations[at].end > start {
                active.push(at);
            }
        }
        if active.is_empty() || !exposure.in_flight.contains(start) {
            continue;
        }
        let share = seconds(end - start) / active.len() as f64;
        let is_exposed = exposure.exposed.contains(start);
        for at in &active {
            let (hidden, exposed) = &mut shares[*at];
            *if is_exposed { exposed } else { hidden } += share;
        }
    }
    shares
}
