"""What the user says about compression."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor

from gradwire._native import Codec

QUANTIZED = (
    "bf16",
    "fp16",
    "int8",
    "int6",
    "int5",
    "int4",
    "int2",
    "fp8_e4m3",
    "fp8_e5m2",
    "sign1",
)
"""Families of codecs whose size depends on the number of values alone."""

NEEDS_ERROR_FEEDBACK = ("int2", "sign1")
"""Quantizers that lose so much that training needs the rest later."""

SPECIAL = ("adaptive", "none", "top_k", "random_k", "power_sgd", "block_sparse")


@dataclass(frozen=True)
class CompressionConfig:
    """How gradients travel.

    Parameters
    ----------
    codec
        `adaptive` (chosen for each tensor while training), `none`, a quantizer such as `int8` or
        `int4/64`, `top_k`, `random_k`, `power_sgd`, or `block_sparse`, which loses nothing.
    tolerance
        For `adaptive`: how far the final loss may be from the uncompressed run's, relative.
    error_feedback
        Whether what a codec loses is added to the next gradient. Not given: for codecs that lose
        so much that they need it (`int2`, `sign1`, `top_k`, `random_k`, `power_sgd`).
    smallest
        Tensors with fewer elements travel uncompressed.
    one_dimensional
        Whether tensors with one dimension (biases, norms) are compressed too.
    embedding_bits
        For `adaptive`: embeddings get no codec with fewer bits. They are known by their modules
        where the model is (`parallelize`, `ddp_hook(module=...)`), else guessed by their shape.
    density
        For `top_k` and `random_k`: the part of the elements that is sent.
    rank
        For `power_sgd`: the rank of the approximation.
    first_step
        Steps before this one are not compressed. `power_sgd` gains most from waiting.
    residual_decay
        What a residual is multiplied by from step to step.
    residual_reset
        Residuals are forgotten every so many steps, 0 for never.
    loss_scale
        The loss scale in force, if it changes while training (`scaler.get_scale`): residuals are
        kept in its units.
    """

    codec: str = "adaptive"
    tolerance: float = 1e-3
    error_feedback: bool | None = None
    smallest: int = 2048
    one_dimensional: bool = False
    embedding_bits: int = 8
    density: float = 0.01
    rank: int = 4
    first_step: int = 0
    residual_decay: float = 1.0
    residual_reset: int = 0
    loss_scale: Callable[[], float] | None = None

    def __post_init__(self) -> None:
        if self.codec not in SPECIAL:
            Codec(_checked(self.codec))
        if not 0 < self.density <= 1:
            raise ValueError(f"density must be above 0 and at most 1, got {self.density}")
        if self.tolerance <= 0:
            raise ValueError(f"tolerance must be above 0, got {self.tolerance}")
        if self.one_dimensional and self.codec == "power_sgd":
            raise ValueError("power_sgd is for matrices; it can't do one_dimensional tensors")
        if not 0 <= self.embedding_bits <= 32:
            raise ValueError(f"embedding_bits must be from 0 to 32, got {self.embedding_bits}")
        if self.rank < 1:
            raise ValueError(f"rank must be at least 1, got {self.rank}")
        if not 0 <= self.residual_decay <= 1:
            raise ValueError(f"residual_decay must be from 0 to 1, got {self.residual_decay}")

    def may_compress(self, parameter: Tensor) -> bool:
        """Return whether a parameter's gradient is large enough, and of the right shape."""
        least_dimensions = 1 if self.one_dimensional else 2
        return parameter.dim() >= least_dimensions and parameter.numel() >= self.smallest

    @property
    def feeds_back(self) -> bool:
        """Whether what is lost is added to the next gradient."""
        if self.codec == "block_sparse":
            return False
        if self.error_feedback is not None:
            return self.error_feedback
        family = self.codec.split("/")[0].split("+")[0]
        return family in NEEDS_ERROR_FEEDBACK or self.codec in ("top_k", "random_k", "power_sgd")


def _checked(codec: str) -> str:
    """Return a quantizer's name; say what there is if it is none."""
    family = codec.split("/")[0].split("+")[0]
    if family not in QUANTIZED:
        names = ", ".join(SPECIAL + QUANTIZED)
        raise ValueError(f"unknown codec {codec!r}; there are {names}")
    return codec


def as_config(config: str | CompressionConfig, **changes: object) -> CompressionConfig:
    """Return a configuration from a codec's name, or the given one, with fields replaced."""
    if isinstance(config, str):
        config = CompressionConfig(codec=config)
    return replace(config, **changes) if changes else config  # type: ignore[arg-type]
