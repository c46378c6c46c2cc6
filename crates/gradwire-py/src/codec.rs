//! Codecs on memory of the caller: what error feedback keeps and what the controller tries out.

use std::str::FromStr;

use gradwire_codec::sparse::{self, SparseValue};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// A way to write float32 values in fewer bytes.
#[pyclass(frozen, module = "gradwire._native")]
pub(crate) struct Codec {
    inner: gradwire_codec::Codec,
}

/// The codec of a name such as `int8` or `int4/64`.
pub(crate) fn parse(name: &str) -> PyResult<gradwire_codec::Codec> {
    gradwire_codec::Codec::from_str(name).map_err(|error| PyValueError::new_err(error.to_string()))
}

#[pymethods]
impl Codec {
    #[new]
    fn new(name: &str) -> PyResult<Self> {
        Ok(Codec { inner: parse(name)? })
    }

    /// The full name, with all options.
    fn name(&self) -> String {
        self.inner.to_string()
    }

    /// Bytes that so many values take.
    fn encoded_bytes(&self, elements: usize) -> usize {
        self.inner.encoded_bytes(elements)
    }

    /// Encode float32 values at an address into bytes at another.
    ///
    /// Both are given with their room, in elements and bytes, which must fit each other.
    fn encode(
        &self,
        py: Python<'_>,
        values: (usize, usize),
        wire: (usize, usize),
        seed: u64,
    ) -> PyResult<()> {
        self.check(values, wire)?;
        py.detach(|| {
            // SAFETY: the caller (`gradwire.compression`) passes tensors that it holds, with their
            // lengths, and nobody else writes to them meanwhile.
            let (values, wire) = unsafe { (floats(values), bytes(wire)) };
            self.inner.encode(values, seed, wire);
        });
        Ok(())
    }

    /// Add decoded values to float32 values at an address.
    fn decode_add(
        &self,
        py: Python<'_>,
        wire: (usize, usize),
        values: (usize, usize),
    ) -> PyResult<()> {
        self.check(values, wire)?;
        py.detach(|| {
            // SAFETY: as above.
            let (values, wire) = unsafe { (floats(values), bytes(wire)) };
            self.inner.decode_add(wire, None, values, None);
        });
        Ok(())
    }
}

impl Codec {
    fn check(&self, values: (usize, usize), wire: (usize, usize)) -> PyResult<()> {
        let needed = self.inner.encoded_bytes(values.1);
        if wire.1 != needed {
            let text = format!(
                "{} values take {needed} bytes with {}, not {}",
                values.1, self.inner, wire.1
            );
            return Err(PyValueError::new_err(text));
        }
        if !values.0.is_multiple_of(align_of::<f32>()) {
            return Err(PyValueError::new_err("float32 values must be aligned to 4 bytes"));
        }
        Ok(())
    }
}

/// Bytes of `count` of so many values in sparse form.
#[pyfunction]
pub(crate) fn sparse_bytes(elements: usize, count: usize) -> usize {
    sparse::sparse_bytes(elements, count, SparseValue::F32)
}

/// Write the `count` largest of the values at (address, elements) to (address, bytes).
#[pyfunction]
pub(crate) fn encode_top_k(
    py: Python<'_>,
    values: (usize, usize),
    count: usize,
    wire: (usize, usize),
) -> PyResult<()> {
    let needed = sparse_bytes(values.1, count);
    if count > values.1 || wire.1 != needed || u32::try_from(values.1).is_err() {
        let text = format!("{count} of {} values do not fit into {} bytes", values.1, wire.1);
        return Err(PyValueError::new_err(text));
    }
    py.detach(|| {
        // SAFETY: as in `Codec::encode`.
        let (values, wire) = unsafe { (floats(values), bytes(wire)) };
        let mut indices = Vec::new();
        sparse::top_k(values, count, &mut indices);
        sparse::encode_sparse(values, &indices, SparseValue::F32, wire);
    });
    Ok(())
}

/// Add sparse values at (address, bytes) to the values at (address, elements).
#[pyfunction]
pub(crate) fn decode_sparse_add(
    py: Python<'_>,
    wire: (usize, usize),
    values: (usize, usize),
) -> PyResult<()> {
    py.detach(|| {
        // SAFETY: as in `Codec::encode`.
        let (values, wire) = unsafe { (floats(values), bytes(wire)) };
        sparse::decode_sparse_add(wire, SparseValue::F32, values)
    })
    .map_err(|error| PyValueError::new_err(error.to_string()))
}

/// # Safety
/// There are so many values at the address, and nobody else uses them meanwhile.
unsafe fn floats<'a>((address, elements): (usize, usize)) -> &'a mut [f32] {
    if elements == 0 {
        return &mut [];
    }
    // SAFETY: promised by the caller; alignment was checked.
    unsafe {
        std::slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut(address), elements)
    }
}

/// # Safety
/// There are so many bytes at the address, and nobody else uses them meanwhile.
unsafe fn bytes<'a>((address, length): (usize, usize)) -> &'a mut [u8] {
    if length == 0 {
        return &mut [];
    }
    // SAFETY: promised by the caller.
    unsafe {
        std::slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut(address), length)
    }
}
