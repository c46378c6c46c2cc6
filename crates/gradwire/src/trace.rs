//! A timeline of what the engine does: recorded while it runs, written as one file a rank.
//!
//! Recording is off unless the setting `trace` names a directory or [`Engine::start_trace`] is
//! called; until then each tile costs one relaxed load. While it is on, operations, tiles on their
//! wires, reductions, encodings and waits of callers go into a bounded buffer, and callers add spans
//! of their own. [`Engine::write_trace`] writes `rank<N>.json` in Chrome's trace event format, which
//! Perfetto and `chrome://tracing` open; `gradwire trace` merges and explains the files of all ranks.

mod clock;
mod file;
mod recorder;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clock::{Clock, ClockPoint};
use file::About;
pub use recorder::now;
pub(crate) use recorder::{
    Direction, Event, OperationKey, OperationTrace, Recorder, Span, TileTrace, WaitTrace, Work,
    WorkTrace,
};

use crate::engine::{EngineHandle, lock};
use crate::{Communicator, Engine, Error};

/// The group on which clocks are compared, so that this meets no operation of the caller's.
pub(crate) const CLOCK_GROUP: &str = "gradwire/clock";
/// How long ranks may take to come together for a trace.
const GATHERING: Duration = Duration::from_secs(60);
/// As long as this at the end, when a rank may be gone; and so much more for each rank.
const PARTING: Duration = Duration::from_secs(2);
const PARTING_PER_RANK: Duration = Duration::from_millis(5);

/// A recording under way, and what is needed to end it.
#[derive(Debug, Default)]
pub(crate) struct Session {
    group: Option<Communicator>,
    clock: Clock,
}

impl Session {
    /// Lets go of the engine.
    pub fn end(&mut self) {
        self.group = None;
    }
}

impl Engine {
    /// Starts to record, from an empty buffer. Collective: all ranks call it, since their clocks are
    /// compared first.
    ///
    /// # Errors
    /// [`Error::Start`] if a rank does not come; nothing is recorded then.
    pub fn start_trace(&self) -> Result<(), Error> {
        self.handle.start_trace()
    }

    /// Ends the recording and writes `rank<N>.json` into a directory, which is made if need be.
    /// Collective, but a rank that does not come only costs the second comparison of clocks: two
    /// seconds, and the drift between them. Operations in flight are written when they have ended
    /// before; returns where the file is.
    ///
    /// # Errors
    /// [`Error::Request`] if nothing is being recorded or the file can't be written.
    pub fn write_trace(&self, directory: &Path) -> Result<PathBuf, Error> {
        let handle = &self.handle;
        if !handle.shared.recorder.stop() {
            return Err(Error::Request("no trace is being recorded".to_owned()));
        }
        handle.compare_clocks_at_parting();
        handle.write_trace(directory)
    }

    /// Whether a trace is being recorded.
    pub fn is_tracing(&self) -> bool {
        self.handle.shared.recorder.is_active()
    }

    /// Adds a span of the caller's, on the calling thread, if a trace is being recorded. `start`
    /// and `end` are times of [`now`]; `arguments`, one JSON object, is shown with it.
    pub fn record_span(
        &self,
        name: &str,
        category: &str,
        start: u64,
        end: u64,
        arguments: Option<String>,
    ) {
        let recorder = &self.handle.shared.recorder;
        if recorder.is_active() {
            let (name, category) = (name.to_owned(), category.to_owned());
            recorder.push_of_thread(|thread| {
                Event::Span(Box::new(Span { name, category, thread, start, end, arguments }))
            });
        }
    }
}

impl EngineHandle {
    fn start_trace(self: &Arc<Self>) -> Result<(), Error> {
        let shared = &self.shared;
        let mut session = lock(&self.trace);
        if session.group.is_none() {
            let engine = Engine { handle: self.clone() };
            let members: Vec<u32> = (0..shared.config.world_size).collect();
            session.group = Some(engine.communicator(CLOCK_GROUP, &members)?);
        }
        let group = session.group.as_ref().expect("just made");
        group.set_timeout(GATHERING);
        match ClockPoint::measure(group) {
            Ok(point) => session.clock = Clock::starting(point),
            Err(error) => {
                session.group = None;
                let text = format!("tracing compares the ranks' clocks: {error}");
                return Err(Error::Start(text));
            }
        }
        shared.recorder.start(shared.config.trace_events);
        Ok(())
    }

    /// A second comparison shows how the clocks drift. Peers may be gone: then the first one holds.
    pub(crate) fn compare_clocks_at_parting(&self) {
        let mut session = lock(&self.trace);
        let Some(group) = &session.group else { return };
        group.set_timeout(PARTING + PARTING_PER_RANK * group.size());
        match ClockPoint::measure(group) {
            Ok(point) => session.clock.end(point),
            Err(error) => {
                tracing::debug!(%error, "clocks were not compared at the end of the trace");
                // The group has failed; the next trace needs another one.
                session.group = None;
            }
        }
    }

    pub(crate) fn write_trace(&self, directory: &Path) -> Result<PathBuf, Error> {
        let shared = &self.shared;
        let about = About {
            job: shared.job.clone(),
            rank: shared.config.rank,
            world_size: shared.config.world_size,
            host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        };
        let session = lock(&self.trace);
        let recording = shared.recorder.take();
        file::write(directory, &about, &session.clock, &recording).map_err(|error| {
            Error::Request(format!("cannot write a trace to {}: {error}", directory.display()))
        })
    }
}
