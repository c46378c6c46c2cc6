//! Handles of operations in flight, and waiting for them.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use gradwire_core::OperationId;

use crate::communicator::Group;
use crate::trace::{Event, WaitTrace, now};
use crate::{Communicator, Error};

/// How an operation ended.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub result: Result<(), Error>,
    /// World rank of the sender, where it was a receive.
    pub source: Option<u32>,
}

/// What the driver and the handle of an operation share.
#[derive(Debug)]
pub(crate) struct OperationState {
    id: OperationId,
    /// When it ended, and how.
    outcome: OnceLock<(Instant, Outcome)>,
}

impl OperationState {
    pub fn new(id: OperationId) -> Self {
        OperationState { id, outcome: OnceLock::new() }
    }

    pub fn is_done(&self) -> bool {
        self.outcome.get().is_some()
    }

    pub fn finish(&self, outcome: Outcome) {
        let first = self.outcome.set((Instant::now(), outcome)).is_ok();
        debug_assert!(first, "an operation ends once");
    }
}

/// An operation in flight. Dropping it does not end the operation, and the operation's memory must
/// stay valid until it is done.
#[derive(Clone, Debug)]
pub struct Handle {
    pub(crate) state: Arc<OperationState>,
    pub(crate) group: Arc<Group>,
    pub(crate) what: gradwire_core::Descriptor,
}

impl Handle {
    /// Waits until the operation is done, driving it (and all others) meanwhile.
    ///
    /// # Errors
    /// The operation's error, or [`Error::WaitTimeout`] if it is still in flight after `timeout`.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<(), Error> {
        let start = Instant::now();
        let deadline = timeout.map(|timeout| start + timeout);
        if self.state.is_done() {
            self.note_wait(true);
            return self.result(start);
        }
        let engine = &self.group.engine;
        let waiting = engine.waits.begin(start);
        let began = engine.recorder.begin();
        engine.wait_until(&|| self.state.is_done(), deadline);
        self.record_wait(began, true);
        drop(waiting);
        self.result(start)
    }

    /// Waits until the operation is done and leaves the driving to others: to threads that wait
    /// for something themselves, or else to the background thread, which does not spin. For
    /// threads beside a computation that needs the cores.
    ///
    /// # Errors
    /// As [`Handle::wait`].
    pub fn wait_without_driving(&self, timeout: Option<Duration>) -> Result<(), Error> {
        let start = Instant::now();
        let deadline = timeout.map(|timeout| start + timeout);
        if self.state.is_done() {
            self.note_wait(false);
            return self.result(start);
        }
        let began = self.group.engine.recorder.begin();
        self.group.engine.sleep_until(&|| self.state.is_done(), deadline);
        self.record_wait(began, false);
        self.result(start)
    }

    /// Records that the caller would wait were the operation not done: a timeline tells operations
    /// that a computation waits for from those that futures wait for (`drives` false).
    pub fn note_wait(&self, drives: bool) {
        if let Some(at) = self.group.engine.recorder.begin() {
            self.push_wait(drives, at, at);
        }
    }

    fn record_wait(&self, began: Option<u64>, drives: bool) {
        if let Some(start) = began {
            self.push_wait(drives, start, now());
        }
    }

    fn push_wait(&self, drives: bool, start: u64, end: u64) {
        let operation = self.state.id;
        self.group.engine.recorder.push_of_thread(|thread| {
            Event::Wait(WaitTrace { operation, thread, drives, start, end })
        });
    }

    fn result(&self, start: Instant) -> Result<(), Error> {
        match self.state.outcome.get() {
            Some((_, outcome)) => outcome.result.clone(),
            None => Err(Error::WaitTimeout { what: self.what.to_string(), after: start.elapsed() }),
        }
    }

    /// Whether the operation is done, well or not. Does not drive anything.
    pub fn is_done(&self) -> bool {
        self.state.is_done()
    }

    /// The error that the operation ended with, if it has.
    pub fn error(&self) -> Option<Error> {
        self.state.outcome.get().and_then(|(_, outcome)| outcome.result.as_ref().err().cloned())
    }

    /// For how long the operation has been done; `None` while it is in flight.
    pub fn done_for(&self) -> Option<Duration> {
        self.state.outcome.get().map(|(ended, _)| ended.elapsed())
    }

    /// The group rank that a finished receive got its data from.
    pub fn source(&self) -> Option<u32> {
        let world = self.state.outcome.get()?.1.source?;
        self.group.members.iter().position(|member| *member == world).map(|rank| rank as u32)
    }

    /// The group of the operation.
    pub fn communicator(&self) -> Communicator {
        Communicator { group: self.group.clone() }
    }
}

/// For how long callers have waited: time with at least one of them in [`Handle::wait`].
#[derive(Debug, Default)]
pub(crate) struct Waits {
    state: Mutex<WaitsState>,
}

#[derive(Debug, Default)]
struct WaitsState {
    callers: u32,
    since: Option<Instant>,
    total: Duration,
}

/// A caller that waits, until it is dropped.
pub(crate) struct Waiting<'a>(&'a Waits);

impl Waits {
    fn with<T>(&self, action: impl FnOnce(&mut WaitsState) -> T) -> T {
        action(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub fn begin(&self, now: Instant) -> Waiting<'_> {
        self.with(|state| {
            state.callers += 1;
            state.since.get_or_insert(now);
        });
        Waiting(self)
    }

    /// All of it so far.
    pub fn total(&self) -> Duration {
        self.with(|state| state.total + state.since.map_or(Duration::ZERO, |since| since.elapsed()))
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.with(|state| {
            state.callers -= 1;
            if state.callers == 0
                && let Some(since) = state.since.take()
            {
                state.total += since.elapsed();
            }
        });
    }
}
