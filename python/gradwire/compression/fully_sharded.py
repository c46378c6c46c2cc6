"""FSDP2: gradients, and weights if wanted, travel encoded (as in ZeRO++, arXiv 2306.10209)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gradwire.compression.configuration import NEEDS_ERROR_FEEDBACK, QUANTIZED
from gradwire.compression.operations import all_gather, reduce_scatter
from gradwire.work import AsyncWork


class _Allocation:
    """Memory for communication: ordinary tensors."""

    def __init__(self, codec: str) -> None:
        self._codec = codec

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return an uninitialised tensor."""
        return torch.empty(*size, dtype=dtype, device=device)

    def _codec_for(self, tensor: Tensor) -> str | None:
        return self._codec if tensor.dtype == torch.float32 else None


class EncodedReduceScatter(_Allocation):
    """For `FSDPModule.set_custom_reduce_scatter`; gradients that are not float32 travel as are."""

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: Any,
        op: Any,
        async_op: bool = False,
    ) -> AsyncWork | None:
        """Reduce the gradients of one module group."""
        codec = self._codec_for(input_tensor)
        return reduce_scatter(
            output_tensor, input_tensor, op, group, codec=codec, async_op=async_op
        )


class EncodedAllGather(_Allocation):
    """For `FSDPModule.set_custom_all_gather`; weights that are not float32 travel as they are."""

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool = False
    ) -> AsyncWork | None:
        """Gather the weights of one module group. The shards stay as they are."""
        codec = self._codec_for(input_tensor)
        if codec is not None and _overlap(input_tensor, output_tensor):
            input_tensor = input_tensor.clone()  # Its place in the output becomes what all decode.
        return all_gather(output_tensor, input_tensor, group, codec=codec, async_op=async_op)


def compress_fully_sharded(
    module: nn.Module, *, gradients: str | None = "int8", weights: str | None = None
) -> None:
    """Make all FSDP2 modules of a model communicate encoded.

    Parameters
    ----------
    module
        What `fully_shard` has been applied to, on a mesh served by gradwire.
    gradients
        A quantizer for the reduce-scatter of gradients (`int8`, `int4` ...), `None` for none.
    weights
        The same for the all-gather of weights. Every rank computes with the rounded weights; the
        shards that the optimizer updates stay exact.

    Raises
    ------
    ValueError
        If the codec is unknown or needs error feedback, or nothing here is an FSDP2 module.
    """
    from torch.distributed.fsdp import FSDPModule

    for codec in (gradients, weights):
        if codec is not None:
            _check(codec)
    parts = [part for part in module.modules() if isinstance(part, FSDPModule)]
    if not parts:
        raise ValueError("no part of the module is an FSDP2 module; apply fully_shard first")
    for part in parts:
        if gradients is not None:
            part.set_custom_reduce_scatter(EncodedReduceScatter(gradients))  # type: ignore[arg-type]
        if weights is not None:
            part.set_custom_all_gather(EncodedAllGather(weights))  # type: ignore[arg-type]


def _check(codec: str) -> None:
    family = codec.split("/")[0].split("+")[0]
    usable = [name for name in QUANTIZED if name not in NEEDS_ERROR_FEEDBACK]
    if family not in usable:
        raise ValueError(f"codec {codec!r} can't be used here; {', '.join(usable)} can")


def _overlap(one: Tensor, other: Tensor) -> bool:
    start, end = one.data_ptr(), one.data_ptr() + one.nbytes
    return start < other.data_ptr() + other.nbytes and other.data_ptr() < end
