//! Groups of ranks, and starting operations on them.

use gradwire::{Collective, DataType, Memory, ReduceOp, Request};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::engine::duration;
use crate::failure::exception;
use crate::handle::Handle;

/// A group of ranks that communicate with each other.
#[pyclass(frozen, module = "gradwire._native")]
pub(crate) struct Communicator {
    inner: gradwire::Communicator,
}

/// Address and length in bytes.
type Range = (usize, usize);

impl Communicator {
    pub(crate) fn new(inner: gradwire::Communicator) -> Self {
        Communicator { inner }
    }
}

#[pymethods]
impl Communicator {
    /// This process's rank in the group.
    fn rank(&self) -> u32 {
        self.inner.rank()
    }

    /// The number of ranks.
    fn size(&self) -> u32 {
        self.inner.size()
    }

    /// Seconds until an operation fails.
    fn timeout(&self) -> f64 {
        self.inner.timeout().as_secs_f64()
    }

    /// Set the seconds until an operation started from now on fails.
    fn set_timeout(&self, seconds: f64) -> PyResult<()> {
        self.inner.set_timeout(duration(seconds)?);
        Ok(())
    }

    /// Make all operations of the group fail on all members.
    fn abort(&self, py: Python<'_>, reason: &str) {
        py.detach(|| self.inner.abort(reason));
    }

    /// Start an operation on memory given as (address, bytes), which must outlive the handle.
    ///
    /// `peer` is the other rank of `send` and `receive`; a receive without one takes what comes
    /// first. `waits_at_once` promises that the caller waits next. `codec` names how values travel;
    /// what it loses of this rank's contribution is left in `error`, unless that is empty.
    /// Operations with a lower `priority` (0 to 255, 128 for collectives and 64 for messages if not
    /// given) overtake others. `label` is what traces call it. `tile_bytes`, the same on all ranks,
    /// is the size of the pieces between which they overtake, the engine's if not given.
    #[pyo3(signature = (
        collective, dtype, op, inputs, outputs,
        root = 0, peer = None, tag = 0, timeout_s = None, waits_at_once = false,
        codec = None, error = Vec::new(), priority = None, label = None,
        tile_bytes = None,
    ))]
    #[expect(clippy::too_many_arguments, reason = "the keywords of a Python function")]
    fn submit(
        &self,
        py: Python<'_>,
        collective: &str,
        dtype: &str,
        op: &str,
        inputs: Vec<Range>,
        outputs: Vec<Range>,
        root: u32,
        peer: Option<u32>,
        tag: u32,
        timeout_s: Option<f64>,
        waits_at_once: bool,
        codec: Option<&str>,
        error: Vec<Range>,
        priority: Option<u8>,
        label: Option<String>,
        tile_bytes: Option<u32>,
    ) -> PyResult<Handle> {
        let collective_of_group = self.collective(collective, root, peer)?;
        let mut request = Request::new(collective_of_group, data_type(dtype)?, operator(op)?);
        request.input = memory(inputs);
        request.output = memory(outputs);
        request.tag = tag;
        request.timeout = timeout_s.map(duration).transpose()?;
        request.any_source = collective == "receive" && peer.is_none();
        request.waits_at_once = waits_at_once;
        request.codec = codec.map(crate::codec::parse).transpose()?;
        request.error = memory(error);
        request.priority = priority.unwrap_or(request.priority);
        request.tile_bytes = tile_bytes;
        request.label = label.or_else(crate::trace::label);
        let submitted = py.detach(|| {
            // SAFETY: the caller (`gradwire.work`) keeps the tensors that own this memory until
            // the handle is done, and c10d's contract keeps others from writing to them.
            unsafe { self.inner.submit(request) }
        });
        submitted.map(Handle::new).map_err(|error| exception(py, &error))
    }
}

impl Communicator {
    fn collective(&self, name: &str, root: u32, peer: Option<u32>) -> PyResult<Collective> {
        let me = self.inner.rank();
        Ok(match name {
            "all_reduce" => Collective::AllReduce,
            "reduce" => Collective::Reduce { root },
            "broadcast" => Collective::Broadcast { root },
            "reduce_scatter" => Collective::ReduceScatter,
            "all_gather" => Collective::AllGather,
            "gather" => Collective::Gather { root },
            "scatter" => Collective::Scatter { root },
            "all_to_all" => Collective::AllToAll,
            "barrier" => Collective::Barrier,
            "send" => {
                let to = peer.ok_or_else(|| PyValueError::new_err("a send needs its peer"))?;
                Collective::SendReceive { from: me, to }
            }
            "receive" => Collective::SendReceive { from: peer.unwrap_or(me), to: me },
            _ => return Err(PyValueError::new_err(format!("unknown collective '{name}'"))),
        })
    }
}

/// Lists of the names are in `gradwire.element_types`; its short forms are looked up fastest here.
fn data_type(name: &str) -> PyResult<DataType> {
    Ok(match name {
        "f32" => DataType::F32,
        "bf16" => DataType::Bf16,
        "f16" => DataType::F16,
        _ => DataType::from_name(name)
            .ok_or_else(|| PyValueError::new_err(format!("unknown data type '{name}'")))?,
    })
}

fn operator(name: &str) -> PyResult<ReduceOp> {
    ReduceOp::from_name(name)
        .ok_or_else(|| PyValueError::new_err(format!("unknown reduce operator '{name}'")))
}

fn memory(ranges: Vec<Range>) -> Vec<Memory> {
    ranges
        .into_iter()
        .map(|(address, bytes)| Memory {
            pointer: std::ptr::with_exposed_provenance_mut(address),
            bytes,
        })
        .collect()
}
