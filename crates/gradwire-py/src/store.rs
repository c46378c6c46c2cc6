//! torch's rendezvous store as the engine sees it.

use std::time::{Duration, Instant};

use gradwire::Store;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

const SHORTEST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// Any object with the `set`, `check` and `get` of `torch.distributed.Store`.
pub(crate) struct PythonStore {
    object: Py<PyAny>,
}

impl PythonStore {
    pub(crate) fn new(object: Py<PyAny>) -> Self {
        PythonStore { object }
    }

    fn with<T>(
        &self,
        action: impl for<'py> FnOnce(&Bound<'py, PyAny>) -> PyResult<T>,
    ) -> Result<T, String> {
        // Threads of the engine may get here while the interpreter is on its way out.
        Python::try_attach(|py| action(self.object.bind(py)))
            .ok_or("the Python interpreter has ended")?
            .map_err(|error| format!("the rendezvous store fails: {error}"))
    }

    fn find(&self, key: &str) -> Result<Option<Vec<u8>>, String> {
        self.with(|store| {
            if !store.call_method1("check", ([key],))?.extract::<bool>()? {
                return Ok(None);
            }
            store.call_method1("get", (key,))?.extract::<Vec<u8>>().map(Some)
        })
    }
}

impl Store for PythonStore {
    fn set(&self, key: &str, value: &[u8]) -> Result<(), String> {
        self.with(|store| {
            store.call_method1("set", (key, PyBytes::new(store.py(), value)))?;
            Ok(())
        })
    }

    /// Asks again and again: torch's `wait` would keep the store from all other threads.
    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>, String> {
        let start = Instant::now();
        let mut pause = SHORTEST_PAUSE;
        loop {
            if let Some(value) = self.find(key)? {
                return Ok(value);
            }
            if start.elapsed() >= timeout {
                return Err(format!("key '{key}' was not set within {timeout:?}"));
            }
            std::thread::sleep(pause);
            pause = (2 * pause).min(LONGEST_PAUSE);
        }
    }
}
