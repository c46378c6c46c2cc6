//! The files of a trace, as their engines wrote them.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::failure::Failure;

/// More ranks than any job has.
const MOST_RANKS: u32 = 1 << 20;

/// What one rank has recorded. Times are nanoseconds on rank 0's clock.
#[derive(Debug)]
pub struct RankTrace {
    pub about: About,
    /// How far off this rank's times may be against the others'; unknown where clocks were never
    /// compared.
    pub clock_uncertainty_ns: Option<u64>,
    pub began: i64,
    pub ended: i64,
    pub lost_events: u64,
    pub operations: Vec<Operation>,
    pub tiles: Vec<Tile>,
    pub works: Vec<Work>,
    pub waits: Vec<Wait>,
    pub spans: Vec<Span>,
}

/// Whose trace it is.
#[derive(Clone, Debug, Deserialize)]
pub struct About {
    pub job: String,
    pub rank: u32,
    pub world_size: u32,
    pub host: String,
}

/// Names an operation on all ranks, or rather its place in [`Traces::keys`].
pub type Key = u32;

/// An operation in flight.
#[derive(Debug)]
pub struct Operation {
    pub key: Key,
    /// What waits call it.
    pub id: u64,
    /// In words.
    pub what: String,
    pub label: Option<String>,
    pub bytes: u64,
    /// One rank's message to another, rather than a collective.
    pub is_message: bool,
    pub failed: bool,
    pub start: i64,
    pub end: i64,
}

/// A tile on a wire.
#[derive(Debug)]
pub struct Tile {
    pub key: Key,
    /// This rank sent it.
    pub sent: bool,
    pub peer: u32,
    pub edge: u32,
    pub tile: u32,
    pub bytes: u64,
    /// When the lane was given it; it may have stood there behind others until `start`.
    pub handed: i64,
    pub start: i64,
    pub end: i64,
}

/// A reduction or a codec at work.
#[derive(Debug)]
pub struct Work {
    pub key: Key,
    pub start: i64,
    pub end: i64,
}

/// A caller waiting in the engine.
#[derive(Debug)]
pub struct Wait {
    /// The operation's [`Operation::id`].
    pub operation: u64,
    pub thread: u64,
    /// Whether it drove the engine; threads that complete futures do not.
    pub drives: bool,
    pub start: i64,
    pub end: i64,
}

/// A span that the program has recorded.
#[derive(Debug)]
pub struct Span {
    pub category: String,
    pub thread: u64,
    pub start: i64,
    pub end: i64,
}

/// The traces of a job.
#[derive(Debug)]
pub struct Traces {
    /// By rank; all of one job, maybe not all of its ranks.
    pub ranks: Vec<RankTrace>,
    /// What is odd about them.
    pub warnings: Vec<String>,
}

impl Traces {
    /// The trace of a rank.
    pub fn index_of(&self, rank: u32) -> Option<usize> {
        self.ranks.iter().position(|it| it.about.rank == rank)
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Document<'a> {
    #[serde(borrow)]
    trace_events: Vec<RawEvent<'a>>,
}

#[derive(Deserialize)]
struct RawEvent<'a> {
    ph: Cow<'a, str>,
    #[serde(default, borrow)]
    cat: Cow<'a, str>,
    #[serde(default, borrow)]
    name: Cow<'a, str>,
    #[serde(default)]
    tid: u64,
    #[serde(default)]
    ts: f64,
    #[serde(default)]
    dur: f64,
    #[serde(borrow)]
    args: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Metadata {
    about: About,
    clock_uncertainty_ns: Option<u64>,
    began_us: f64,
    ended_us: f64,
    lost_events: u64,
}

#[derive(Deserialize)]
struct OperationArguments {
    key: String,
    id: u64,
    what: String,
    label: Option<String>,
    bytes: u64,
    message: bool,
    error: Option<String>,
}

#[derive(Deserialize)]
struct TileArguments<'a> {
    #[serde(borrow)]
    key: Cow<'a, str>,
    peer: u32,
    edge: u32,
    tile: u32,
    bytes: u64,
    queued_us: f64,
}

#[derive(Deserialize)]
struct WorkArguments<'a> {
    #[serde(borrow)]
    key: Cow<'a, str>,
}

#[derive(Deserialize)]
struct WaitArguments {
    id: u64,
    drives: bool,
}

/// The files `rank<N>.json` of a directory, by rank.
///
/// # Errors
/// When there are none.
pub fn files(directory: &Path) -> anyhow::Result<BTreeMap<u32, PathBuf>> {
    let entries = fs::read_dir(directory).map_err(|error| {
        Failure::usage(format!("trace: cannot read {}: {error}", directory.display()))
    })?;
    let mut files = BTreeMap::new();
    for entry in entries {
        let path = entry.with_context(|| format!("trace: {}", directory.display()))?.path();
        let rank = path
            .file_name()
            .and_then(|name| name.to_str())
            .and_then(|name| name.strip_prefix("rank")?.strip_suffix(".json")?.parse::<u32>().ok());
        if let Some(rank) = rank {
            files.insert(rank, path);
        }
    }
    if files.is_empty() {
        let text = format!(
            "trace: there is no rank<N>.json in {}; run the job with GRADWIRE_TRACE={} or record \
             a part of it with gradwire.profile, and let it end in good order",
            directory.display(),
            directory.display()
        );
        return Err(Failure::usage(text).into());
    }
    Ok(files)
}

/// Reads all traces of a directory. Files that an earlier job has left are passed over.
///
/// # Errors
/// When there are none, or one of them is not what an engine wrote.
pub fn directory(directory: &Path) -> anyhow::Result<Traces> {
    let mut keys = HashMap::new();
    let mut found = Vec::new();
    for path in files(directory)?.into_values() {
        let written = fs::metadata(&path).and_then(|it| it.modified()).ok();
        let trace = file(&path, &mut keys)?;
        found.push((written, trace));
    }
    let latest = found.iter().max_by_key(|(written, _)| *written).expect("there are files");
    let About { job, world_size, .. } = latest.1.about.clone();
    let (mut ranks, mut strangers, mut warnings) = (Vec::new(), Vec::new(), Vec::new());
    for (_, trace) in found {
        let is_of_job = trace.about.job == job;
        if is_of_job { ranks.push(trace) } else { strangers.push(trace.about.rank) }
    }
    if !strangers.is_empty() {
        warnings.push(format!("left by an earlier job and passed over: {}", listed(&strangers)));
    }
    let missing: Vec<u32> = (0..world_size)
        .filter(|rank| ranks.iter().all(|it: &RankTrace| it.about.rank != *rank))
        .collect();
    if !missing.is_empty() {
        warnings.push(format!(
            "of {world_size} ranks these have left no trace, what they did is missing below: {}",
            listed(&missing)
        ));
    }
    for it in &ranks {
        let rank = it.about.rank;
        if it.lost_events > 0 {
            warnings.push(format!(
                "rank {rank} has lost its {} oldest events; GRADWIRE_TRACE_EVENTS gives more room",
                it.lost_events
            ));
        }
        if it.clock_uncertainty_ns.is_none() {
            warnings.push(format!("rank {rank} is on a clock of its own"));
        }
    }
    Ok(Traces { ranks, warnings })
}

fn listed(ranks: &[u32]) -> String {
    let ranks: Vec<String> = ranks.iter().map(|rank| format!("rank {rank}")).collect();
    ranks.join(", ")
}

fn file(path: &Path, keys: &mut HashMap<String, Key>) -> anyhow::Result<RankTrace> {
    let broken = |error: serde_json::Error| {
        anyhow!(
            "trace: {} is no trace that gradwire wrote, or damaged: {error}; remove it or record \
             again",
            path.display()
        )
    };
    let text = fs::read_to_string(path).with_context(|| format!("trace: {}", path.display()))?;
    let document: Document = serde_json::from_str(&text).map_err(broken)?;
    parse(&document, keys).map_err(broken)
}

fn parse(document: &Document, keys: &mut HashMap<String, Key>) -> serde_json::Result<RankTrace> {
    let is_metadata = |it: &&RawEvent| it.ph == "M" && it.name == "gradwire";
    let metadata = document.trace_events.iter().find(is_metadata).and_then(|it| it.args);
    let unsound = |text| <serde_json::Error as serde::de::Error>::custom(text);
    let metadata = metadata.ok_or_else(|| unsound("it does not say whose it is"))?;
    let metadata: Metadata = serde_json::from_str(metadata.get())?;
    let About { rank, world_size, .. } = metadata.about;
    if rank >= world_size || world_size > MOST_RANKS {
        return Err(unsound("its rank and number of ranks can't be"));
    }
    let mut trace = RankTrace {
        about: metadata.about,
        clock_uncertainty_ns: metadata.clock_uncertainty_ns,
        began: nanoseconds(metadata.began_us),
        ended: nanoseconds(metadata.ended_us),
        lost_events: metadata.lost_events,
        operations: Vec::new(),
        tiles: Vec::new(),
        works: Vec::new(),
        waits: Vec::new(),
        spans: Vec::new(),
    };
    for event in document.trace_events.iter().filter(|event| event.ph == "X") {
        trace.add(event, keys)?;
    }
    Ok(trace)
}

/// Within 36 years, so that sums and differences of times stay numbers.
fn nanoseconds(microseconds: f64) -> i64 {
    const MOST: i64 = 1 << 60;
    ((microseconds * 1e3).round() as i64).clamp(-MOST, MOST)
}

fn key_of(text: &str, keys: &mut HashMap<String, Key>) -> Key {
    match keys.get(text) {
        Some(key) => *key,
        None => {
            let key = keys.len() as Key;
            keys.insert(text.to_owned(), key);
            key
        }
    }
}

impl RankTrace {
    fn add(&mut self, event: &RawEvent, keys: &mut HashMap<String, Key>) -> serde_json::Result<()> {
        let start = nanoseconds(event.ts);
        let end = start + nanoseconds(event.dur);
        let arguments = event.args.map_or("{}", RawValue::get);
        match &*event.cat {
            "gradwire.operation" => {
                let it: OperationArguments = serde_json::from_str(arguments)?;
                self.operations.push(Operation {
                    key: key_of(&it.key, keys),
                    id: it.id,
                    what: it.what,
                    label: it.label,
                    bytes: it.bytes,
                    is_message: it.message,
                    failed: it.error.is_some(),
                    start,
                    end,
                });
            }
            "gradwire.send" | "gradwire.receive" => {
                let it: TileArguments = serde_json::from_str(arguments)?;
                let TileArguments { peer, edge, tile, bytes, .. } = it;
                let (key, sent) = (key_of(&it.key, keys), event.cat == "gradwire.send");
                let handed = start - nanoseconds(it.queued_us);
                self.tiles.push(Tile { key, sent, peer, edge, tile, bytes, handed, start, end });
            }
            "gradwire.work" => {
                let it: WorkArguments = serde_json::from_str(arguments)?;
                self.works.push(Work { key: key_of(&it.key, keys), start, end });
            }
            "gradwire.wait" => {
                let WaitArguments { id: operation, drives } = serde_json::from_str(arguments)?;
                self.waits.push(Wait { operation, thread: event.tid, drives, start, end });
            }
            category => self.spans.push(Span {
                category: category.to_owned(),
                thread: event.tid,
                start,
                end,
            }),
        }
        Ok(())
    }
}

/// Small traces for tests.
#[cfg(test)]
pub mod fixture {
    use super::*;

    /// A rank without events, from 0 to 1000.
    pub fn rank(rank: u32) -> RankTrace {
        let about = About { job: "job".to_owned(), rank, world_size: 2, host: "host".to_owned() };
        RankTrace {
            about,
            clock_uncertainty_ns: Some(0),
            began: 0,
            ended: 1000,
            lost_events: 0,
            operations: Vec::new(),
            tiles: Vec::new(),
            works: Vec::new(),
            waits: Vec::new(),
            spans: Vec::new(),
        }
    }

    /// A collective whose key is its id.
    pub fn operation(id: u64, start: i64, end: i64) -> Operation {
        Operation {
            key: id as Key,
            id,
            what: "all_reduce".to_owned(),
            label: None,
            bytes: 100,
            is_message: false,
            failed: false,
            start,
            end,
        }
    }

    /// A caller waiting.
    pub fn wait(operation: u64, thread: u64, drives: bool, start: i64, end: i64) -> Wait {
        Wait { operation, thread, drives, start, end }
    }

    /// A span of the program.
    pub fn span(category: &str, thread: u64, start: i64, end: i64) -> Span {
        Span { category: category.to_owned(), thread, start, end }
    }

    /// The one tile of an operation.
    pub fn tile(key: Key, sent: bool, peer: u32, start: i64, end: i64) -> Tile {
        Tile { key, sent, peer, edge: 0, tile: 0, bytes: 100, handed: start, start, end }
    }
}
