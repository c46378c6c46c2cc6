//! The Python extension module `gradwire._native`: the engine's types, and nothing of torch's.
//!
//! Memory is named by address and length; the Python side keeps the tensors alive until their
//! handle is done. Whatever may block gives up the interpreter lock meanwhile.

mod communicator;
mod engine;
mod failure;
mod handle;
mod store;

use pyo3::prelude::*;

/// The extension module.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<engine::Engine>()?;
    module.add_class::<communicator::Communicator>()?;
    module.add_class::<handle::Handle>()
}
