"""All-reduce of sparse COO tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gradwire.element_types import operator_name
from gradwire.work import AsyncWork, GroupedWork

if TYPE_CHECKING:
    from gradwire.collectives import Collectives


def reduce_sparse(group: Collectives, tensor: Tensor, operator: Any) -> AsyncWork:
    """Sum a sparse COO tensor over all ranks, in place.

    Every rank gathers the entries of all ranks: their count first, then indices and values,
    padded to the longest, since the ranks' counts differ. Returns when the result is there.

    Parameters
    ----------
    group
        The process group.
    tensor
        Of the same shape and dtype on all ranks; coalesced afterwards.
    operator
        The reduce operator; only `SUM` is possible.

    Raises
    ------
    TypeError, ValueError
        If the layout is another one or the operator no sum.
    """
    if tensor.layout is not torch.sparse_coo:
        raise TypeError(f"all_reduce takes dense and sparse COO tensors, not {tensor.layout}")
    if operator_name(operator) != "sum":
        raise ValueError("all_reduce of sparse tensors supports ReduceOp.SUM only")
    entries = tensor.detach().coalesce()
    counts = _gather(group, torch.tensor([entries._nnz()]))
    longest = int(counts.max())
    indices = _gather(group, _padded(entries.indices().t(), longest))
    values = _gather(group, _padded(entries.values(), longest))

    lengths = [int(count) for count in counts]
    kept_indices = torch.cat([indices[rank, :length] for rank, length in enumerate(lengths)])
    kept_values = torch.cat([values[rank, :length] for rank, length in enumerate(lengths)])
    total = torch.sparse_coo_tensor(kept_indices.t(), kept_values, tensor.shape).coalesce()
    with torch.no_grad():
        tensor.copy_(total)
    return GroupedWork([], [tensor])


def _padded(rows: Tensor, length: int) -> Tensor:
    """Return `rows` with zeros appended up to `length` rows."""
    padded = rows.new_zeros((length, *rows.shape[1:]))
    padded[: rows.shape[0]] = rows
    return padded


def _gather(group: Collectives, tensor: Tensor) -> Tensor:
    """Return all ranks' tensors, stacked."""
    stacked = tensor.new_empty((group._group_size, *tensor.shape))
    group.all_gather_single(stacked, tensor).wait()
    return stacked
