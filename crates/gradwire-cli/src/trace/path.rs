//! The chain of spans that determined how long each step took.
//!
//! It is walked backwards from the end of the step on the rank that ended last. Computation goes
//! back to the wait before it; a wait to what ended last in the operation that it waited for; a tile
//! that came from another rank to what made that rank send it, unless it was under way before this
//! rank had asked for it; and an operation to the computation before its submission. (The usual backward walk over a program activity graph: Yang and Miller,
//! "Critical path analysis for the execution of parallel and distributed programs", ICDCS 1988.)

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;

use super::exposure::{Exposure, steps};
use super::intervals::Intervals;
use super::read::{Key, RankTrace, Traces};
use super::wires::Sends;

/// A walk that takes more than this is given up; each move goes back in time, so it never should.
const MOST_MOVES: usize = 10_000_000;

/// What a piece of the path was.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Piece {
    /// A rank computed; in which phase, if it says so.
    Compute { rank: u32, phase: String },
    /// A tile went from one rank to another.
    Wire { from: u32, to: u32 },
    /// A rank reduced, encoded or decoded.
    Reduce { rank: u32 },
    /// Nothing of the operation moved on this rank.
    Queue { rank: u32 },
    /// The computation stood still, and no operation in the trace says why.
    Wait { rank: u32 },
}

impl Piece {
    fn kind(&self) -> &'static str {
        match self {
            Piece::Compute { .. } => "compute",
            Piece::Wire { .. } => "wire",
            Piece::Reduce { .. } => "reduce",
            Piece::Queue { .. } => "queue",
            Piece::Wait { .. } => "wait",
        }
    }
}

/// A part of the path.
#[derive(Clone, Debug, Serialize)]
pub struct Contribution {
    #[serde(flatten)]
    pub piece: Piece,
    pub seconds: f64,
}

/// Sums over all steps.
#[derive(Clone, Debug, Default, Serialize)]
pub struct CriticalPath {
    /// Steps that were walked; 0 if the whole trace was, for want of steps.
    pub steps: usize,
    pub seconds: f64,
    pub by_kind: BTreeMap<&'static str, f64>,
    /// The largest first.
    pub contributions: Vec<Contribution>,
}

/// Where the walk is.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// In a rank's computation.
    Thread(usize),
    /// In an operation, by its place among the rank's.
    Operation(usize, usize),
}

/// Something that a rank did for an operation.
#[derive(Clone, Copy, Debug)]
struct Move {
    start: i64,
    end: i64,
    what: What,
}

#[derive(Clone, Copy, Debug)]
enum What {
    Sent { to: u32 },
    Received { tile: usize },
    Worked,
}

/// A rank's trace, by what the walk asks for.
struct Rank<'a> {
    trace: &'a RankTrace,
    exposed: &'a Intervals,
    phases: Vec<(&'static str, Intervals)>,
    /// Operations by their ends.
    ends: Vec<(i64, usize)>,
    places: HashMap<Key, usize>,
    /// By operation, by the moves' ends.
    moves: Vec<Vec<Move>>,
}

impl<'a> Rank<'a> {
    fn of(trace: &'a RankTrace, exposure: &'a Exposure) -> Self {
        let phases = ["forward", "backward", "optimizer"].map(|phase| {
            let spans = trace.spans.iter().filter(|span| span.category == phase);
            (phase, Intervals::union(spans.map(|span| (span.start, span.end))))
        });
        let operations = trace.operations.iter().enumerate();
        let mut ends: Vec<(i64, usize)> = operations.clone().map(|(at, it)| (it.end, at)).collect();
        ends.sort_unstable();
        let places: HashMap<Key, usize> = operations.map(|(at, it)| (it.key, at)).collect();
        let mut moves: Vec<Vec<Move>> = vec![Vec::new(); trace.operations.len()];
        for (tile, it) in trace.tiles.iter().enumerate() {
            let what = if it.sent { What::Sent { to: it.peer } } else { What::Received { tile } };
            if let Some(at) = places.get(&it.key) {
                moves[*at].push(Move { start: it.start, end: it.end, what });
            }
        }
        for it in &trace.works {
            if let Some(at) = places.get(&it.key) {
                moves[*at].push(Move { start: it.start, end: it.end, what: What::Worked });
            }
        }
        moves.iter_mut().for_each(|moves| moves.sort_by_key(|it| it.end));
        let exposed = &exposure.exposed;
        Rank { trace, exposed, phases: phases.into(), ends, places, moves }
    }

    /// The operation that ended last within an interval, and took its time.
    fn ended_within(&self, start: i64, end: i64) -> Option<(i64, usize)> {
        let past = self.ends.partition_point(|it| it.0 <= end);
        let within = self.ends[..past].iter().rev().take_while(|it| it.0 > start);
        within.copied().find(|(ended, at)| self.trace.operations[*at].start < *ended)
    }

    /// What was done for an operation last before a moment.
    fn last_move(&self, operation: usize, at: i64) -> Option<Move> {
        let moves = &self.moves[operation];
        let past = moves.partition_point(|it| it.end <= at);
        moves[..past].iter().rev().find(|it| it.start < at).copied()
    }
}

struct Walk<'a> {
    traces: &'a Traces,
    ranks: Vec<Rank<'a>>,
    sends: &'a Sends,
    found: BTreeMap<Piece, i64>,
    /// Where the step began: nothing before it counts.
    begin: i64,
    moves: usize,
}

/// The critical path of all steps.
pub fn critical_path(traces: &Traces, exposures: &[Exposure], sends: &Sends) -> CriticalPath {
    let ranks =
        traces.ranks.iter().zip(exposures).map(|(trace, exposure)| Rank::of(trace, exposure));
    let mut walk =
        Walk { traces, ranks: ranks.collect(), sends, found: BTreeMap::new(), begin: 0, moves: 0 };
    let (steps, ways) = ways(traces);
    for (begin, end, rank) in ways {
        walk.begin = begin;
        walk.back(rank, end);
    }
    let mut path = CriticalPath { steps, ..CriticalPath::default() };
    for (piece, nanoseconds) in walk.found {
        let seconds = nanoseconds as f64 / 1e9;
        path.seconds += seconds;
        *path.by_kind.entry(piece.kind()).or_default() += seconds;
        path.contributions.push(Contribution { piece, seconds });
    }
    path.contributions.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    path
}

/// What is to be walked: number of steps, and of each begin, end and the rank that ended last.
fn ways(traces: &Traces) -> (usize, Vec<(i64, i64, usize)>) {
    let all: Vec<Vec<(i64, i64)>> = traces.ranks.iter().map(steps).collect();
    let count = all.iter().map(Vec::len).min().unwrap_or(0);
    let way = |spans: &mut dyn Iterator<Item = (usize, i64, i64)>| {
        let spans: Vec<_> = spans.collect();
        let begin = spans.iter().map(|it| it.1).min()?;
        let (rank, _, end) = spans.into_iter().max_by_key(|it| it.2)?;
        Some((begin, end, rank))
    };
    if count == 0 {
        let mut operations = traces.ranks.iter().enumerate().flat_map(|(rank, trace)| {
            trace.operations.iter().map(move |it| (rank, it.start, it.end))
        });
        return (0, way(&mut operations).into_iter().collect());
    }
    let ways = (0..count).filter_map(|step| {
        way(&mut all.iter().enumerate().map(|(rank, it)| (rank, it[step].0, it[step].1)))
    });
    (count, ways.collect())
}

impl Walk<'_> {
    fn add(&mut self, piece: Piece, from: i64, to: i64) {
        let nanoseconds = to - from.max(self.begin);
        if nanoseconds > 0 {
            *self.found.entry(piece).or_default() += nanoseconds;
        }
    }

    fn back(&mut self, rank: usize, end: i64) {
        let (mut place, mut at) = (Place::Thread(rank), end);
        while at > self.begin && self.moves < MOST_MOVES {
            self.moves += 1;
            (place, at) = match place {
                Place::Thread(rank) => self.back_in_thread(rank, at),
                Place::Operation(rank, operation) => self.back_in_operation(rank, operation, at),
            };
        }
    }

    /// Back to the wait before, and to the operation that it waited for.
    fn back_in_thread(&mut self, rank: usize, at: i64) -> (Place, i64) {
        let number = self.traces.ranks[rank].about.rank;
        let Some((start, end)) = self.ranks[rank].exposed.last_before(at) else {
            self.compute(rank, self.begin, at);
            return (Place::Thread(rank), self.begin);
        };
        let end = end.min(at);
        self.compute(rank, end, at);
        match self.ranks[rank].ended_within(start, end) {
            Some((ended, operation)) => {
                self.add(Piece::Wait { rank: number }, ended, end);
                (Place::Operation(rank, operation), ended)
            }
            None => {
                self.add(Piece::Wait { rank: number }, start, end);
                (Place::Thread(rank), start)
            }
        }
    }

    fn compute(&mut self, rank: usize, from: i64, to: i64) {
        let from = from.max(self.begin);
        let number = self.traces.ranks[rank].about.rank;
        let mut rest = to - from;
        let phases: Vec<(&'static str, i64)> = self.ranks[rank]
            .phases
            .iter()
            .map(|(phase, spans)| (*phase, spans.overlap(from, to)))
            .collect();
        for (phase, nanoseconds) in phases.into_iter().chain([("", i64::MAX)]) {
            let nanoseconds = nanoseconds.min(rest);
            if nanoseconds > 0 {
                let piece = Piece::Compute { rank: number, phase: phase.to_owned() };
                *self.found.entry(piece).or_default() += nanoseconds;
                rest -= nanoseconds;
            }
        }
    }

    /// Back to what was done for the operation last, or to its submission.
    fn back_in_operation(&mut self, rank: usize, operation: usize, at: i64) -> (Place, i64) {
        let trace = &self.traces.ranks[rank];
        let (number, submitted) = (trace.about.rank, trace.operations[operation].start);
        let here = Place::Operation(rank, operation);
        let last = self.ranks[rank].last_move(operation, at).filter(|it| it.end > submitted);
        let Some(last) = last else {
            self.add(Piece::Queue { rank: number }, submitted.min(at), at);
            return (Place::Thread(rank), submitted.min(at));
        };
        self.add(Piece::Queue { rank: number }, last.end, at);
        match last.what {
            What::Worked => {
                self.add(Piece::Reduce { rank: number }, last.start, last.end);
                (here, last.start)
            }
            What::Sent { to } => {
                self.add(Piece::Wire { from: number, to }, last.start, last.end);
                (here, last.start)
            }
            What::Received { tile } => {
                let tile = &trace.tiles[tile];
                let piece = Piece::Wire { from: tile.peer, to: number };
                let start = self.sends.start_of(number, tile).unwrap_or(tile.start);
                self.add(piece, start.max(submitted), last.end);
                if start <= submitted {
                    // The tile was under way before this rank asked for it.
                    return (Place::Thread(rank), submitted);
                }
                (self.on_rank(tile.peer, tile.key).unwrap_or(here), start.min(last.end - 1))
            }
        }
    }

    /// An operation on another rank.
    fn on_rank(&self, rank: u32, key: Key) -> Option<Place> {
        let at = self.traces.index_of(rank)?;
        let operation = *self.ranks[at].places.get(&key)?;
        Some(Place::Operation(at, operation))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::read::Work;
    use crate::trace::read::fixture::{operation, rank, span, tile, wait};

    /// Rank 1 computes for long, then sends; rank 0 waits for it, reduces, and goes on.
    fn late_sender() -> Traces {
        let mut zero = rank(0);
        zero.spans = vec![span("step", 1, 0, 100), span("optimizer", 1, 90, 98)];
        zero.operations = vec![operation(5, 10, 90)];
        zero.waits = vec![wait(5, 1, true, 40, 90)];
        zero.tiles = vec![tile(5, true, 1, 11, 12), tile(5, false, 1, 80, 85)];
        zero.works = vec![Work { key: 5, start: 85, end: 90 }];
        let mut one = rank(1);
        one.spans = vec![span("step", 1, 0, 95), span("backward", 1, 20, 70)];
        one.operations = vec![operation(5, 68, 94)];
        one.tiles = vec![tile(5, true, 0, 70, 71), tile(5, false, 0, 69, 70)];
        Traces { ranks: vec![zero, one], warnings: Vec::new() }
    }

    #[test]
    fn the_path_leads_to_the_rank_that_was_late() {
        let traces = late_sender();
        let exposures: Vec<Exposure> = traces.ranks.iter().map(Exposure::of).collect();
        let path = critical_path(&traces, &exposures, &Sends::of(&traces));
        let of = |piece: Piece| {
            let found = path.contributions.iter().find(|it| it.piece == piece);
            found.map_or(0, |it| (it.seconds * 1e9).round() as i64)
        };
        let compute = |rank, phase: &str| of(Piece::Compute { rank, phase: phase.to_owned() });
        assert_eq!((path.steps, (path.seconds * 1e9).round() as i64), (1, 100));
        assert_eq!((compute(0, "optimizer"), compute(0, "")), (8, 2));
        assert_eq!(of(Piece::Reduce { rank: 0 }), 5);
        assert_eq!(of(Piece::Wire { from: 1, to: 0 }), 15);
        // A tile had come to rank 1 just before. Rank 0 had sent it early, so that is not why.
        assert_eq!(of(Piece::Wire { from: 0, to: 1 }), 2);
        assert_eq!((compute(1, "backward"), compute(1, "")), (48, 20));
    }
}
