//! Handles of operations in flight, and waiting for them.

use std::sync::Arc;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::communicator::Group;
use crate::{Communicator, Error};

/// How an operation ended.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub result: Result<(), Error>,
    /// World rank of the sender, where it was a receive.
    pub source: Option<u32>,
}

/// What the driver and the handle of an operation share.
#[derive(Debug, Default)]
pub(crate) struct OperationState {
    outcome: OnceLock<Outcome>,
}

impl OperationState {
    pub fn is_done(&self) -> bool {
        self.outcome.get().is_some()
    }

    pub fn finish(&self, outcome: Outcome) {
        let first = self.outcome.set(outcome).is_ok();
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
        self.group.engine.wait_until(&|| self.state.is_done(), deadline);
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
        self.group.engine.sleep_until(&|| self.state.is_done(), deadline);
        self.result(start)
    }

    fn result(&self, start: Instant) -> Result<(), Error> {
        match self.state.outcome.get() {
            Some(outcome) => outcome.result.clone(),
            None => Err(Error::WaitTimeout { what: self.what.to_string(), after: start.elapsed() }),
        }
    }

    /// Whether the operation is done, well or not. Does not drive anything.
    pub fn is_done(&self) -> bool {
        self.state.is_done()
    }

    /// The error that the operation ended with, if it has.
    pub fn error(&self) -> Option<Error> {
        self.state.outcome.get().and_then(|outcome| outcome.result.as_ref().err().cloned())
    }

    /// The group rank that a finished receive got its data from.
    pub fn source(&self) -> Option<u32> {
        let world = self.state.outcome.get()?.source?;
        self.group.members.iter().position(|member| *member == world).map(|rank| rank as u32)
    }

    /// The group of the operation.
    pub fn communicator(&self) -> Communicator {
        Communicator { group: self.group.clone() }
    }
}
