//! Operations in flight.

use std::time::{Duration, Instant};

use pyo3::prelude::*;

use crate::failure::exception;

/// How long a wait goes on before it looks for Ctrl-C.
const SLICE: Duration = Duration::from_millis(100);

/// An operation in flight.
#[pyclass(frozen, module = "gradwire._native")]
pub(crate) struct Handle {
    inner: gradwire::Handle,
}

impl Handle {
    pub(crate) fn new(inner: gradwire::Handle) -> Self {
        Handle { inner }
    }

    /// How the operation ended; `None` while it is in flight.
    fn outcome(&self, py: Python<'_>) -> Option<PyResult<()>> {
        self.inner.is_done().then(|| match self.inner.error() {
            None => Ok(()),
            Some(error) => Err(exception(py, &error)),
        })
    }

    fn wait_in_slices(
        &self,
        py: Python<'_>,
        deadline: Option<Instant>,
        drive: bool,
    ) -> PyResult<()> {
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let slice = left.map_or(SLICE, |left| left.min(SLICE));
            let waited = py.detach(|| {
                if drive {
                    self.inner.wait(Some(slice))
                } else {
                    self.inner.wait_without_driving(Some(slice))
                }
            });
            // It may have ended just after the wait gave up; what counts is how it ended.
            if let Some(outcome) = self.outcome(py) {
                return outcome;
            }
            if left.is_some_and(|left| left <= SLICE) {
                return waited.map_err(|error| exception(py, &error));
            }
            py.check_signals()?;
        }
    }
}

#[pymethods]
impl Handle {
    /// Wait for the end of the operation; raises `GradwireError` if it failed.
    /// With `drive` false others drive it: the background thread, if nobody else waits.
    #[pyo3(signature = (timeout_s = None, drive = true))]
    fn wait(&self, py: Python<'_>, timeout_s: Option<f64>, drive: bool) -> PyResult<()> {
        if let Some(outcome) = self.outcome(py) {
            self.inner.note_wait(drive);
            return outcome;
        }
        let timeout = timeout_s.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        self.wait_in_slices(py, deadline, drive)
    }

    /// Whether the operation is over, well or not.
    fn is_completed(&self) -> bool {
        self.inner.is_done()
    }

    /// What made the operation fail, `None` as long as nothing did.
    fn exception(&self, py: Python<'_>) -> Option<PyErr> {
        self.inner.error().map(|error| exception(py, &error))
    }

    /// For how many seconds the operation has been over, `None` while it is in flight.
    fn seconds_over(&self) -> Option<f64> {
        self.inner.done_for().map(|elapsed| elapsed.as_secs_f64())
    }

    /// The group rank whose message a receive matched.
    fn source(&self) -> Option<u32> {
        self.inner.source()
    }
}
