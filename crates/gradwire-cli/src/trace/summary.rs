//! The summary of a job's trace.

use std::collections::BTreeMap;

use serde::Serialize;

use super::exposure::{Exposure, Method, steps};
use super::operations::{self, Row};
use super::path::{CriticalPath, critical_path};
use super::read::{RankTrace, Traces};
use super::wires::{self, LinkUse, Sends};

/// Where the time went.
#[derive(Debug, Serialize)]
pub struct Summary {
    pub job: String,
    pub world_size: u32,
    pub ranks: Vec<RankSummary>,
    pub operations: Vec<Row>,
    pub critical_path: CriticalPath,
    /// The rank that came to collectives last, by how much time that cost the others.
    pub arrivals: Vec<Arrivals>,
    pub slowest_rank: Option<u32>,
    /// By speed, the slowest first.
    pub links: Vec<LinkUse>,
    /// The slowest of those that carry much.
    pub slowest_link: Option<LinkUse>,
    pub warnings: Vec<String>,
}

/// A rank.
#[derive(Debug, Serialize)]
pub struct RankSummary {
    pub rank: u32,
    pub host: String,
    /// Length of the trace.
    pub trace_s: f64,
    pub steps: usize,
    /// All steps together; the trace if there are none.
    pub window_s: f64,
    /// Within it, with an operation in flight.
    pub communication_s: f64,
    pub hidden_s: f64,
    pub exposed_s: f64,
    /// Exposed communication by the window.
    pub share: f64,
    pub method: Method,
    pub clock_uncertainty_us: Option<f64>,
    pub lost_events: u64,
}

/// How a rank comes to collectives.
#[derive(Debug, Serialize)]
pub struct Arrivals {
    pub rank: u32,
    /// Collectives that more than one rank has noted.
    pub collectives: u64,
    /// Of those, the ones to which it came last.
    pub last: u64,
    /// Seconds that it came after the one before it, all together.
    pub late_s: f64,
}

impl Summary {
    pub fn of(traces: &Traces) -> Self {
        let exposures: Vec<Exposure> = traces.ranks.iter().map(Exposure::of).collect();
        let sends = Sends::of(traces);
        let ranks =
            traces.ranks.iter().zip(&exposures).map(|(trace, exposure)| rank(trace, exposure));
        let arrivals = arrivals(traces, &exposures);
        let slowest = arrivals.iter().filter(|it| it.last > 0);
        let slowest = slowest.max_by(|a, b| a.late_s.total_cmp(&b.late_s)).map(|it| it.rank);
        let about = &traces.ranks[0].about;
        let links = wires::links(traces, &sends);
        Summary {
            job: about.job.clone(),
            world_size: about.world_size,
            ranks: ranks.collect(),
            operations: operations::rows(traces, &exposures),
            critical_path: critical_path(traces, &exposures, &sends),
            slowest_rank: slowest,
            arrivals,
            slowest_link: wires::slowest(&links).cloned(),
            links,
            warnings: traces.warnings.clone(),
        }
    }
}

fn seconds(nanoseconds: i64) -> f64 {
    nanoseconds as f64 / 1e9
}

fn rank(trace: &RankTrace, exposure: &Exposure) -> RankSummary {
    let (window, in_flight) = (exposure.window.total(), exposure.in_flight.total());
    let exposed = exposure.exposed.total();
    RankSummary {
        rank: trace.about.rank,
        host: trace.about.host.clone(),
        trace_s: seconds(trace.ended - trace.began),
        steps: steps(trace).len(),
        window_s: seconds(window),
        communication_s: seconds(in_flight),
        hidden_s: seconds(in_flight - exposed),
        exposed_s: seconds(exposed),
        share: exposed as f64 / window.max(1) as f64,
        method: exposure.method,
        clock_uncertainty_us: trace.clock_uncertainty_ns.map(|it| it as f64 / 1e3),
        lost_events: trace.lost_events,
    }
}

/// Who came last to each collective, within the window.
fn arrivals(traces: &Traces, exposures: &[Exposure]) -> Vec<Arrivals> {
    let mut submissions: BTreeMap<u32, Vec<(i64, usize)>> = BTreeMap::new();
    for (at, (trace, exposure)) in traces.ranks.iter().zip(exposures).enumerate() {
        for it in trace.operations.iter().filter(|it| !it.is_message) {
            if exposure.window.contains(it.start) {
                submissions.entry(it.key).or_default().push((it.start, at));
            }
        }
    }
    let mut arrivals: Vec<Arrivals> = traces
        .ranks
        .iter()
        .map(|trace| Arrivals { rank: trace.about.rank, collectives: 0, last: 0, late_s: 0.0 })
        .collect();
    for mut times in submissions.into_values().filter(|times| times.len() > 1) {
        times.sort_unstable();
        times.iter().for_each(|(_, at)| arrivals[*at].collectives += 1);
        let [.., (before, _), (last, at)] = times[..] else { continue };
        arrivals[at].last += 1;
        arrivals[at].late_s += seconds(last - before);
    }
    arrivals
}
