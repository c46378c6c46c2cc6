//! What traces call the operations that a thread starts.

use std::cell::RefCell;

use pyo3::prelude::*;

thread_local! {
    static LABEL: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// The label of operations started now by this thread.
pub(crate) fn label() -> Option<String> {
    LABEL.with_borrow(Clone::clone)
}

/// Label operations that this thread starts from now on; returns the label until now.
#[pyfunction]
#[pyo3(signature = (label))]
pub(crate) fn set_label(label: Option<String>) -> Option<String> {
    LABEL.replace(label)
}
