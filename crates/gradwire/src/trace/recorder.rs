//! The bounded buffer of events.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use gradwire_core::{Descriptor, Identity};
use gradwire_transport::Wire;
use rustc_hash::FxHashMap;
use rustix::thread::gettid;
use rustix::time::{ClockId, clock_gettime};

/// The clock of all events, `CLOCK_MONOTONIC`, in nanoseconds.
pub fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// What an operation is called in the files of all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OperationKey {
    pub identity: Identity,
    /// World ranks of a message's sender and receiver; the sender is unknown (`None` in its place)
    /// until a receive from any source is matched.
    pub message: Option<(Option<u32>, u32)>,
}

impl fmt::Display for OperationKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Identity { group, sequence, tag } = self.identity;
        match self.message {
            None => write!(f, "{group:x}/{sequence}"),
            Some((None, to)) => write!(f, "{group:x}/?/{tag}/?>{to}"),
            Some((Some(from), to)) => write!(f, "{group:x}/{sequence}/{tag}/{from}>{to}"),
        }
    }
}

/// An operation in flight, as it is being recorded.
#[derive(Clone, Debug)]
pub(crate) struct OperationTrace {
    /// Names it in waits.
    pub id: u64,
    pub key: OperationKey,
    pub what: Descriptor,
    pub label: Option<String>,
    pub priority: u8,
    /// Bytes of the tensors.
    pub bytes: u64,
    pub submitted: u64,
    /// When its first tile was handed to a lane or began to arrive.
    pub first: Option<u64>,
    /// Bytes on the wire.
    pub sent: u64,
    pub received: u64,
}

impl OperationTrace {
    /// Notes a tile that moves.
    pub fn moves(&mut self, at: u64) {
        self.first.get_or_insert(at);
    }
}

/// Which way a tile went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Direction {
    Sent,
    Received,
}

/// A tile on a wire.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TileTrace {
    pub direction: Direction,
    pub key: OperationKey,
    pub peer: u32,
    /// Number of the lane among all of this rank.
    pub lane: u32,
    pub wire: Wire,
    pub edge: u32,
    pub tile: u32,
    pub bytes: u32,
    /// When the lane was given it. Of a tile that was received the same as `start`.
    pub handed: u64,
    /// When the lane was through with what it was given before, or the header was here.
    pub start: u64,
    /// When its memory was free again, or the payload was complete.
    pub end: u64,
}

/// What was done with the bytes of a tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    Copy,
    Reduce,
    Encode,
    Decode,
}

impl Work {
    pub fn name(self) -> &'static str {
        match self {
            Work::Copy => "copy",
            Work::Reduce => "reduce",
            Work::Encode => "encode",
            Work::Decode => "decode",
        }
    }
}

/// Work on a tile.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WorkTrace {
    pub work: Work,
    pub key: OperationKey,
    pub tile: u32,
    pub bytes: u32,
    pub start: u64,
    pub end: u64,
}

/// A caller waiting for an operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitTrace {
    pub operation: u64,
    pub thread: i32,
    /// Whether it drove the engine meanwhile; threads that complete futures do not.
    pub drives: bool,
    pub start: u64,
    pub end: u64,
}

/// A span of the caller's own.
#[derive(Clone, Debug)]
pub(crate) struct Span {
    pub name: String,
    pub category: String,
    pub thread: i32,
    pub start: u64,
    pub end: u64,
    /// One JSON object.
    pub arguments: Option<String>,
}

/// Something that took its time.
#[derive(Debug)]
pub(crate) enum Event {
    Operation { trace: Box<OperationTrace>, ended: u64, error: Option<Box<str>> },
    Tile(TileTrace),
    Work(WorkTrace),
    Wait(WaitTrace),
    Span(Box<Span>),
}

/// What was recorded.
#[derive(Debug, Default)]
pub(crate) struct Recording {
    pub events: VecDeque<Event>,
    /// Events that found no room: the oldest make way.
    pub lost: u64,
    /// When recording began and ended.
    pub began: u64,
    pub ended: u64,
    pub groups: FxHashMap<u64, String>,
    pub threads: FxHashMap<i32, String>,
    capacity: usize,
}

/// Records while it is active.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    active: AtomicBool,
    recording: Mutex<Recording>,
}

impl Recorder {
    pub fn is_active(&self) -> bool {
        self.active.load(Ordering::Relaxed)
    }

    /// The time, if a trace is being recorded.
    pub fn begin(&self) -> Option<u64> {
        self.is_active().then(now)
    }

    fn lock(&self) -> MutexGuard<'_, Recording> {
        self.recording.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a recording with room for so many events.
    pub fn start(&self, capacity: usize) {
        *self.lock() = Recording { capacity, began: now(), ..Recording::default() };
        self.active.store(true, Ordering::Relaxed);
    }

    /// Stops recording; false if there was none. Operations that are in flight are still noted as
    /// they end, until the recording is taken.
    pub fn stop(&self) -> bool {
        let was_active = self.active.swap(false, Ordering::Relaxed);
        self.lock().ended = now();
        was_active
    }

    pub fn take(&self) -> Recording {
        std::mem::take(&mut *self.lock())
    }

    pub fn push(&self, event: Event) {
        self.lock().push(event);
    }

    /// Adds an event of the calling thread.
    pub fn push_of_thread(&self, event: impl FnOnce(i32) -> Event) {
        let thread = gettid().as_raw_nonzero().get();
        let mut recording = self.lock();
        recording.threads.entry(thread).or_insert_with(|| thread_name(thread));
        recording.push(event(thread));
    }

    /// Notes what a group is called.
    pub fn name_group(&self, group: u64, name: &str) {
        self.lock().groups.entry(group).or_insert_with(|| name.to_owned());
    }
}

impl Recording {
    fn push(&mut self, event: Event) {
        if self.capacity == 0 {
            return;
        }
        if self.events.len() == self.capacity {
            self.events.pop_front();
            self.lost += 1;
        }
        self.events.push_back(event);
    }
}

fn thread_name(thread: i32) -> String {
    if u32::try_from(thread) == Ok(std::process::id()) {
        return "main thread".to_owned();
    }
    let name = std::fs::read_to_string(format!("/proc/self/task/{thread}/comm"));
    format!("{} {thread}", name.as_deref().map_or("thread", str::trim))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(start: u64) -> impl FnOnce(i32) -> Event {
        move |thread| {
            let (name, category) = ("layer".to_owned(), "forward".to_owned());
            Event::Span(Box::new(Span {
                name,
                category,
                thread,
                start,
                end: start,
                arguments: None,
            }))
        }
    }

    #[test]
    fn the_oldest_events_make_way_and_are_counted() {
        let recorder = Recorder::default();
        recorder.push_of_thread(span(0));
        recorder.start(3);
        (1..=5).for_each(|start| recorder.push_of_thread(span(start)));
        assert!(recorder.stop() && !recorder.stop());
        let recording = recorder.take();
        let kept: Vec<u64> = recording
            .events
            .iter()
            .map(|event| match event {
                Event::Span(span) => span.start,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!((kept, recording.lost), (vec![3, 4, 5], 2));
    }
}
