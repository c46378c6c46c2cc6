"""Collectives of plain tensors with a codec."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gradwire.element_types import operator_name
from gradwire.process_group import GradwireBackend, GradwireProcessGroup
from gradwire.work import AsyncWork

_SUM = dist.ReduceOp.SUM


def gradwire_group(group: Any = None) -> GradwireProcessGroup | GradwireBackend:
    """Return what serves a process group's host tensors, if that is gradwire.

    Raises
    ------
    ValueError
        If it is another backend.
    """
    group = dist.group.WORLD if group is None else group
    if group is None:
        raise ValueError("there is no process group; call init_process_group('gradwire') first")
    if isinstance(group, GradwireProcessGroup):
        return group
    backend = group._get_backend(torch.device("cpu"))
    if isinstance(backend, (GradwireProcessGroup, GradwireBackend)):
        return backend
    raise ValueError(
        f"codecs need a process group of gradwire, this one is served by {backend.name()}; "
        "pass 'gradwire' to init_process_group or new_group"
    )


def check_float32(operation: str, codec: str, *tensors: Tensor) -> None:
    """Raise TypeError for tensors that a codec can't take."""
    for tensor in tensors:
        if tensor.dtype != torch.float32 or tensor.layout is not torch.strided:
            raise TypeError(
                f"{operation}: codec {codec!r} works on dense float32 tensors, not on "
                f"{tensor.dtype} ({tensor.layout}); convert it, or leave out the codec"
            )


def all_reduce(
    tensor: Tensor,
    op: Any = _SUM,
    group: Any = None,
    *,
    codec: str | None = None,
    error: Tensor | None = None,
    async_op: bool = False,
) -> AsyncWork | None:
    """Reduce a tensor over all ranks, in place; all ranks end with the same bits.

    Parameters
    ----------
    tensor
        float32 if there is a codec.
    op
        `ReduceOp.SUM` or `ReduceOp.AVG` if there is a codec.
    group
        A process group of gradwire; the default group if not given.
    codec
        How values travel: `bf16`, `fp16`, `int8`, `int6`, `int5`, `int4`, `int2`, `fp8_e4m3`,
        `fp8_e5m2`, `sign1`, with options as in `int4/64`; as they are if not given.
    error
        Filled with what the codec lost of this rank's contribution: a contiguous float32 tensor on
        the host with as many elements. On all ranks or on none.
    async_op
        Return a work instead of waiting.
    """
    backend = gradwire_group(group)
    if codec is None:
        work = backend._reduce_in_place("all_reduce", tensor, op, 0, None)
    else:
        check_float32("all_reduce", codec, tensor)
        work = backend._reduce_with_codec(tensor, operator_name(op), codec, error)
    return _waited(work, async_op)


def reduce_scatter(
    output: Tensor,
    input: Tensor,
    op: Any = _SUM,
    group: Any = None,
    *,
    codec: str | None = None,
    error: Tensor | None = None,
    async_op: bool = False,
) -> AsyncWork | None:
    """Reduce a tensor of n equal pieces over all ranks; rank r's output is piece r.

    Parameters as for `all_reduce`; `error` has the input's elements.
    """
    backend = gradwire_group(group)
    if codec is not None:
        check_float32("reduce_scatter", codec, output, input)
    backend._check_ratio("reduce_scatter", whole=input, piece=output)
    work = backend._reduce_scatter(output, [input], op, None, codec=codec, error=error)
    return _waited(work, async_op)


def all_gather(
    output: Tensor,
    input: Tensor,
    group: Any = None,
    *,
    codec: str | None = None,
    async_op: bool = False,
) -> AsyncWork | None:
    """Gather every rank's tensor on every rank, into one tensor of n pieces.

    With a codec every rank, the sender too, gets what the codec makes of a piece.
    """
    backend = gradwire_group(group)
    if codec is not None:
        check_float32("all_gather", codec, output, input)
    backend._check_ratio("all_gather", whole=output, piece=input)
    work = backend._move("all_gather", [input], [output], codec=codec)
    return _waited(work, async_op)


def _waited(work: AsyncWork, async_op: bool) -> AsyncWork | None:
    if async_op:
        return work
    work.wait()
    return None
