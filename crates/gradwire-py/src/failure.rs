//! Errors of the engine as Python exceptions.

use gradwire::Error;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

static GRADWIRE_ERROR: PyOnceLock<Py<PyType>> = PyOnceLock::new();

/// The exception for `error`: `ValueError` for what the caller may not ask, else `GradwireError`
/// with the world rank of the culprit, if there is one, as its `culprit`.
pub(crate) fn exception(py: Python<'_>, error: &Error) -> PyErr {
    if matches!(error, Error::Request(_) | Error::Config(_)) {
        return PyValueError::new_err(error.to_string());
    }
    gradwire_error(py, error).unwrap_or_else(|failed| failed)
}

fn gradwire_error(py: Python<'_>, error: &Error) -> PyResult<PyErr> {
    let class = GRADWIRE_ERROR.import(py, "gradwire.errors", "GradwireError")?;
    let exception = class.call1((error.to_string(),))?;
    exception.setattr("culprit", error.culprit())?;
    Ok(PyErr::from_value(exception))
}
