//! A recording as a file in Chrome's trace event format.
//!
//! Format: "Trace Event Format" (Google, 2016), JSON object form. The process is the rank; threads
//! are those of the computation, then the operations in flight (as many rows as there were at once),
//! then each lane in each direction, then what the engine did with bytes.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use gradwire_transport::Wire;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::clock::Clock;
use super::recorder::{Direction, Event, Recording, Span, TileTrace, WaitTrace, WorkTrace};
use super::{OperationTrace, now};

/// Above the numbers that the system gives to threads (2^22 at most).
const FIRST_OPERATION_ROW: u64 = 10_000_000;
const FIRST_LANE_ROW: u64 = 20_000_000;
const WORK_ROW: u64 = 30_000_000;

/// torch.profiler counts from the last multiple of three mean months, in Unix time (Kineto's
/// `ChromeTraceBaseTime`). Files that count from the same time can be opened together.
const BASE_INTERVAL: Duration = Duration::from_secs(3 * 2_629_746);

/// Whose recording it is.
#[derive(Debug, Serialize)]
pub(super) struct About {
    /// The same for all ranks of a job, and for no other job.
    pub job: String,
    pub rank: u32,
    pub world_size: u32,
    pub host: String,
}

/// Writes `rank<N>.json`, all of it or nothing, and returns where it is.
pub(super) fn write(
    directory: &Path,
    about: &About,
    clock: &Clock,
    recording: &Recording,
) -> io::Result<PathBuf> {
    std::fs::create_dir_all(directory)?;
    let path = directory.join(format!("rank{}.json", about.rank));
    let aside = directory.join(format!(".rank{}.json.{}", about.rank, std::process::id()));
    let written = File::create(&aside).and_then(|file| {
        let mut page = Page::begin(BufWriter::with_capacity(1 << 20, file), about, clock)?;
        page.metadata(recording)?;
        page.events(recording)?;
        page.end()
    });
    written.and_then(|()| std::fs::rename(&aside, &path)).inspect_err(|_| {
        // What is left of it is of no use; the error that counts is the first one.
        let _ = std::fs::remove_file(&aside);
    })?;
    Ok(path)
}

/// A complete event.
#[derive(Serialize)]
struct Complete<'a, A: Serialize> {
    ph: &'static str,
    cat: &'a str,
    name: &'a str,
    pid: u32,
    tid: u64,
    ts: f64,
    dur: f64,
    args: A,
}

#[derive(Serialize)]
struct OperationArguments<'a> {
    key: String,
    id: u64,
    group: &'a str,
    what: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    label: Option<&'a str>,
    bytes: u64,
    sent: u64,
    received: u64,
    priority: u8,
    #[serde(skip_serializing_if = "Option::is_none")]
    codec: Option<String>,
    /// Microseconds from its submission until its first tile moved.
    #[serde(skip_serializing_if = "Option::is_none")]
    first_us: Option<f64>,
    message: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
}

#[derive(Serialize)]
struct TileArguments {
    key: String,
    peer: u32,
    edge: u32,
    tile: u32,
    bytes: u32,
    /// Microseconds in the lane behind others.
    queued_us: f64,
}

#[derive(Serialize)]
struct WorkArguments {
    key: String,
    tile: u32,
    bytes: u32,
}

#[derive(Serialize)]
struct WaitArguments {
    id: u64,
    drives: bool,
}

/// A file being written.
struct Page<'a> {
    file: BufWriter<File>,
    about: &'a About,
    clock: &'a Clock,
    /// Unix time from which the file counts.
    base_ns: i64,
    is_first: bool,
}

fn micros(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e3
}

impl<'a> Page<'a> {
    fn begin(mut file: BufWriter<File>, about: &'a About, clock: &'a Clock) -> io::Result<Self> {
        let wall = clock.on_rank_zero(now()) + clock.wall_ns();
        let interval = BASE_INTERVAL.as_nanos() as i64;
        let base_ns = wall.div_euclid(interval) * interval;
        writeln!(
            file,
            "{{\"schemaVersion\":1,\"displayTimeUnit\":\"ms\",\"baseTimeNanoseconds\":{base_ns},\
             \"traceEvents\":["
        )?;
        Ok(Page { file, about, clock, base_ns, is_first: true })
    }

    /// A time of this rank in microseconds from the file's base, on rank 0's clock.
    fn time(&self, local: u64) -> f64 {
        (self.clock.on_rank_zero(local) + self.clock.wall_ns() - self.base_ns) as f64 / 1e3
    }

    fn line(&mut self, event: &impl Serialize) -> io::Result<()> {
        if !std::mem::replace(&mut self.is_first, false) {
            self.file.write_all(b",\n")?;
        }
        Ok(serde_json::to_writer(&mut self.file, event)?)
    }

    fn span(
        &mut self,
        (cat, name): (&str, &str),
        tid: u64,
        (start, end): (u64, u64),
        args: impl Serialize,
    ) -> io::Result<()> {
        let (ts, pid) = (self.time(start), self.about.rank);
        let length = self.clock.on_rank_zero(end) - self.clock.on_rank_zero(start);
        let dur = length.max(0) as f64 / 1e3;
        self.line(&Complete { ph: "X", cat, name, pid, tid, ts, dur, args })
    }

    fn name(&mut self, kind: &str, tid: u64, name: &str, order: u64) -> io::Result<()> {
        let pid = self.about.rank;
        let (named, sorted) = (format!("{kind}_name"), format!("{kind}_sort_index"));
        self.line(
            &json!({"ph": "M", "name": named, "pid": pid, "tid": tid, "args": {"name": name}}),
        )?;
        let args = json!({"sort_index": order});
        self.line(&json!({"ph": "M", "name": sorted, "pid": pid, "tid": tid, "args": args}))
    }

    /// What the file is about, as an event too, so that it survives a merge.
    fn metadata(&mut self, recording: &Recording) -> io::Result<()> {
        let About { rank, host, .. } = self.about;
        let process = format!("rank {rank} on {host}");
        self.name("process", 0, &process, u64::from(*rank))?;
        for (order, (thread, name)) in recording.threads.iter().enumerate() {
            self.name("thread", *thread as u64, name, order as u64)?;
        }
        let groups: BTreeMap<String, &String> =
            recording.groups.iter().map(|(group, name)| (format!("{group:x}"), name)).collect();
        let about: Value = json!({
            "about": self.about,
            "clock": self.clock.points(),
            "clock_uncertainty_ns": self.clock.uncertainty_ns(),
            "began_us": self.time(recording.began),
            "ended_us": self.time(recording.ended),
            "lost_events": recording.lost,
            "groups": groups,
        });
        self.line(&json!({
            "ph": "M", "name": "gradwire", "pid": rank, "tid": 0, "args": about,
        }))
    }

    fn events(&mut self, recording: &Recording) -> io::Result<()> {
        let rows = Rows::of(recording);
        self.rows(&rows)?;
        let mut operation = 0;
        for event in &recording.events {
            match event {
                Event::Operation { trace, ended, error } => {
                    let row = FIRST_OPERATION_ROW + rows.of_operations[operation];
                    operation += 1;
                    self.operation(trace, *ended, error.as_deref(), row, recording)?;
                }
                Event::Tile(tile) => self.tile(tile, rows.lanes[&lane_of(tile)])?,
                Event::Work(work) => self.work(work)?,
                Event::Wait(wait) => self.wait(wait)?,
                Event::Span(span) => self.own(span)?,
            }
        }
        Ok(())
    }

    fn rows(&mut self, rows: &Rows) -> io::Result<()> {
        let operations = rows.of_operations.iter().max().map_or(0, |last| last + 1);
        for row in 0..operations {
            let name = format!("operations {}", row + 1);
            self.name("thread", FIRST_OPERATION_ROW + row, &name, 1_000_000 + row)?;
        }
        for ((direction, peer, lane, wire), row) in &rows.lanes {
            let towards = match direction {
                Direction::Sent => "to",
                Direction::Received => "from",
            };
            self.name("thread", *row, &format!("{towards} rank {peer}, {wire} lane {lane}"), *row)?;
        }
        self.name("thread", WORK_ROW, "reduce and codec", WORK_ROW)
    }

    fn operation(
        &mut self,
        trace: &OperationTrace,
        ended: u64,
        error: Option<&str>,
        row: u64,
        recording: &Recording,
    ) -> io::Result<()> {
        let what = trace.what.to_string();
        let group = recording.groups.get(&trace.key.identity.group);
        let arguments = OperationArguments {
            key: trace.key.to_string(),
            id: trace.id,
            group: group.map_or("", String::as_str),
            what: &what,
            label: trace.label.as_deref(),
            bytes: trace.bytes,
            sent: trace.sent,
            received: trace.received,
            priority: trace.priority,
            codec: trace.what.codec.map(|codec| codec.to_string()),
            first_us: trace.first.map(|first| micros(first.saturating_sub(trace.submitted))),
            message: trace.what.is_point_to_point(),
            error,
        };
        let name = trace.label.as_deref().unwrap_or(&what);
        self.span(("gradwire.operation", name), row, (trace.submitted, ended), arguments)
    }

    fn tile(&mut self, tile: &TileTrace, row: u64) -> io::Result<()> {
        let category = match tile.direction {
            Direction::Sent => "gradwire.send",
            Direction::Received => "gradwire.receive",
        };
        let arguments = TileArguments {
            key: tile.key.to_string(),
            peer: tile.peer,
            edge: tile.edge,
            tile: tile.tile,
            bytes: tile.bytes,
            queued_us: micros(tile.start.saturating_sub(tile.handed)),
        };
        self.span((category, "tile"), row, (tile.start, tile.end), arguments)
    }

    fn work(&mut self, work: &WorkTrace) -> io::Result<()> {
        let arguments =
            WorkArguments { key: work.key.to_string(), tile: work.tile, bytes: work.bytes };
        self.span(("gradwire.work", work.work.name()), WORK_ROW, (work.start, work.end), arguments)
    }

    fn wait(&mut self, wait: &WaitTrace) -> io::Result<()> {
        let arguments = WaitArguments { id: wait.operation, drives: wait.drives };
        let place = (wait.thread as u64, (wait.start, wait.end));
        self.span(("gradwire.wait", "wait"), place.0, place.1, arguments)
    }

    fn own(&mut self, span: &Span) -> io::Result<()> {
        let names = (span.category.as_str(), span.name.as_str());
        let place = (span.thread as u64, (span.start, span.end));
        let text = span.arguments.as_deref().unwrap_or("{}");
        match serde_json::from_str::<&RawValue>(text) {
            Ok(arguments) => self.span(names, place.0, place.1, arguments),
            Err(_) => self.span(names, place.0, place.1, json!({"arguments": text})),
        }
    }

    fn end(mut self) -> io::Result<()> {
        self.file.write_all(b"\n]}\n")?;
        self.file.flush()
    }
}

/// Direction, peer, lane and its wire.
type LaneKey = (Direction, u32, u32, &'static str);

fn lane_of(tile: &TileTrace) -> LaneKey {
    let wire = match tile.wire {
        Wire::Tcp => "tcp",
        Wire::SharedMemory => "shm",
    };
    (tile.direction, tile.peer, tile.lane, wire)
}

/// Which row each operation and each lane has.
struct Rows {
    /// By the order of the operations' events.
    of_operations: Vec<u64>,
    lanes: BTreeMap<LaneKey, u64>,
}

impl Rows {
    fn of(recording: &Recording) -> Self {
        let operations: Vec<(u64, u64)> = recording
            .events
            .iter()
            .filter_map(|event| match event {
                Event::Operation { trace, ended, .. } => Some((trace.submitted, *ended)),
                _ => None,
            })
            .collect();
        let tiles = recording.events.iter().filter_map(|event| match event {
            Event::Tile(tile) => Some(lane_of(tile)),
            _ => None,
        });
        let mut lanes: BTreeMap<LaneKey, u64> = tiles.map(|lane| (lane, 0)).collect();
        lanes.values_mut().zip(FIRST_LANE_ROW..).for_each(|(row, number)| *row = number);
        Rows { of_operations: share_rows(&operations), lanes }
    }
}

/// Gives each interval the first row that is free when it begins.
fn share_rows(intervals: &[(u64, u64)]) -> Vec<u64> {
    let mut order: Vec<usize> = (0..intervals.len()).collect();
    order.sort_by_key(|at| intervals[*at]);
    let mut busy_until: Vec<u64> = Vec::new();
    let mut rows = vec![0; intervals.len()];
    for at in order {
        let (start, end) = intervals[at];
        let row = busy_until.iter().position(|until| *until <= start).unwrap_or_else(|| {
            busy_until.push(0);
            busy_until.len() - 1
        });
        busy_until[row] = end;
        rows[at] = row as u64;
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_of_one_row_do_not_overlap() {
        let intervals = [(5, 9), (0, 4), (1, 6), (4, 5), (6, 7), (9, 9)];
        assert_eq!(share_rows(&intervals), [0, 0, 1, 0, 1, 0]);
    }
}
