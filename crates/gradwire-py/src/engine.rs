//! One process's end of a job.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use gradwire::EngineConfig;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::communicator::Communicator;
use crate::failure::exception;
use crate::store::PythonStore;

/// All connections and threads of one process.
#[pyclass(frozen, module = "gradwire._native")]
pub(crate) struct Engine {
    inner: gradwire::Engine,
}

/// A timeout given in seconds.
pub(crate) fn duration(seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds)
        .map_err(|error| PyValueError::new_err(format!("a timeout of {seconds} s: {error}")))
}

#[pymethods]
impl Engine {
    #[new]
    #[pyo3(signature = (rank, world_size, store, timeout_s, options = None))]
    fn new(
        py: Python<'_>,
        rank: u32,
        world_size: u32,
        store: Py<PyAny>,
        timeout_s: f64,
        options: Option<HashMap<String, String>>,
    ) -> PyResult<Self> {
        let mut config = EngineConfig::from_env().map_err(|error| exception(py, &error))?;
        config.rank = rank;
        config.world_size = world_size;
        config.timeout = duration(timeout_s)?;
        for (name, value) in options.unwrap_or_default() {
            config.set(&name, &value).map_err(|error| {
                PyValueError::new_err(format!("gradwire option {name}={value}: {error}"))
            })?;
        }
        let store = Arc::new(PythonStore::new(store));
        let started = py.detach(|| gradwire::Engine::start(config, store));
        Ok(Engine { inner: started.map_err(|error| exception(py, &error))? })
    }

    /// A communicator among the engine ranks `ranks`; `name` is the same on all of them.
    fn communicator(&self, py: Python<'_>, name: &str, ranks: Vec<u32>) -> PyResult<Communicator> {
        py.detach(|| self.inner.communicator(name, &ranks))
            .map(Communicator::new)
            .map_err(|error| exception(py, &error))
    }

    /// The engine's counters.
    fn counters(&self) -> HashMap<&'static str, u64> {
        self.inner.counters().into_iter().collect()
    }

    /// Count bytes that the caller sends encoded by itself, before and after.
    fn count_encoded(&self, py: Python<'_>, before: u64, after: u64) {
        py.detach(|| self.inner.count_encoded(before, after));
    }

    /// Start to record a trace, on all ranks: their clocks are compared first.
    fn start_trace(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.inner.start_trace()).map_err(|error| exception(py, &error))
    }

    /// End the trace and write `rank<N>.json` into a directory; returns its path.
    fn write_trace(&self, py: Python<'_>, directory: PathBuf) -> PyResult<PathBuf> {
        py.detach(|| self.inner.write_trace(&directory)).map_err(|error| exception(py, &error))
    }

    /// Whether a trace is being recorded.
    fn is_tracing(&self) -> bool {
        self.inner.is_tracing()
    }

    /// Add a span of the calling thread to the trace; times are `time.monotonic_ns()`.
    #[pyo3(signature = (name, category, start_ns, end_ns, arguments = None))]
    fn record_span(
        &self,
        name: &str,
        category: &str,
        start_ns: u64,
        end_ns: u64,
        arguments: Option<String>,
    ) {
        self.inner.record_span(name, category, start_ns, end_ns, arguments);
    }

    /// Keep the bytes on their way to each peer over TCP to about so many, so that urgent operations
    /// overtake others soon; with `None` the kernel fills the queues on the way.
    #[pyo3(signature = (bytes))]
    fn limit_in_flight(&self, py: Python<'_>, bytes: Option<usize>) {
        py.detach(|| self.inner.limit_in_flight(bytes));
    }

    /// End all connections and threads; what was sent before is given `grace_s` to arrive.
    #[pyo3(signature = (grace_s = 2.0))]
    fn shutdown(&self, py: Python<'_>, grace_s: f64) -> PyResult<()> {
        let grace = duration(grace_s)?;
        py.detach(|| self.inner.shutdown(grace));
        Ok(())
    }
}
