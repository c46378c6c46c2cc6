"""PyTorch's dtypes and reduce operators in the engine's terms."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed import ReduceOp

REDUCIBLE: dict[torch.dtype, str] = {
    torch.float32: "f32",
    torch.float64: "f64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.bool: "bool",
    torch.float8_e4m3fn: "f8e4m3",
    torch.float8_e5m2: "f8e5m2",
}
"""The engine's name of each dtype that it can reduce."""

MOVABLE: dict[torch.dtype, str] = {
    **REDUCIBLE,
    torch.complex32: "f16",
    torch.complex64: "f32",
    torch.complex128: "f64",
    torch.float8_e4m3fnuz: "u8",
    torch.float8_e5m2fnuz: "u8",
    torch.uint16: "i16",
    torch.uint32: "i32",
    torch.uint64: "i64",
}
"""The name under which each dtype travels where nothing is reduced: any type of whole elements."""

_KINDS: Any = ReduceOp.RedOpType  # To mypy an empty enumeration.

OPERATORS: dict[Any, str] = {
    _KINDS.SUM: "sum",
    _KINDS.AVG: "avg",
    _KINDS.MIN: "min",
    _KINDS.MAX: "max",
    _KINDS.PRODUCT: "product",
    _KINDS.BAND: "band",
    _KINDS.BOR: "bor",
    _KINDS.BXOR: "bxor",
}
"""The engine's name of each reduce operator; `PREMUL_SUM` is a scaling and then a sum."""

LINEAR = frozenset({"sum", "avg"})


def movable_name(dtype: torch.dtype) -> str:
    """Return the name under which `dtype` travels.

    Raises
    ------
    TypeError
        If elements of this type can't be sent as plain bytes.
    """
    try:
        return MOVABLE[dtype]
    except KeyError:
        raise TypeError(
            f"gradwire can't send tensors of {dtype}; convert the tensor to one of "
            f"{', '.join(str(known) for known in MOVABLE)}"
        ) from None


def reducible_name(dtype: torch.dtype) -> str:
    """Return the engine's name of `dtype`, for reductions.

    Raises
    ------
    TypeError
        If the engine has no reduction for this type.
    """
    name = REDUCIBLE.get(dtype)
    if name is None:
        raise TypeError(
            f"gradwire can't reduce tensors of {dtype}; convert the tensor to one of "
            f"{', '.join(str(known) for known in REDUCIBLE)}"
        )
    return name


def operator_name(operator: ReduceOp | ReduceOp.RedOpType) -> str:
    """Return the engine's name of a reduce operator.

    Raises
    ------
    ValueError
        If the operator has none.
    """
    kind: Any = getattr(operator, "op", operator)
    try:
        return OPERATORS[kind]
    except KeyError:
        raise ValueError(f"gradwire does not support the reduce operator {kind}") from None


def premultiplier(operator: ReduceOp | ReduceOp.RedOpType) -> float | torch.Tensor | None:
    """Return the factor of a `PREMUL_SUM` operator, `None` for any other."""
    if getattr(operator, "op", operator) != _KINDS.PREMUL_SUM:
        return None
    if not isinstance(operator, ReduceOp):
        raise ValueError("PREMUL_SUM needs a factor: torch.distributed._make_nccl_premul_sum(...)")
    factor: float | torch.Tensor = operator.__getstate__()[1]  # type: ignore[index]
    return factor
