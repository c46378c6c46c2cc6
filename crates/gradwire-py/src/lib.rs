//! The Python extension module `gradwire._native`: the engine's types, and nothing of torch's.
//!
//! Memory is named by address and length; the Python side keeps the tensors alive until their
//! handle is done. Whatever may block gives up the interpreter lock meanwhile.

mod codec;
mod communicator;
mod engine;
mod failure;
mod handle;
mod store;
mod trace;

use pyo3::prelude::*;

/// The extension module.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<codec::Codec>()?;
    module.add_function(wrap_pyfunction!(codec::sparse_bytes, module)?)?;
    module.add_function(wrap_pyfunction!(codec::encode_top_k, module)?)?;
    module.add_function(wrap_pyfunction!(codec::decode_sparse_add, module)?)?;
    module.add_function(wrap_pyfunction!(trace::set_label, module)?)?;
    module.add_class::<engine::Engine>()?;
    module.add_class::<communicator::Communicator>()?;
    module.add_class::<handle::Handle>()
}
