"""The arms: ways in which gradients travel, and what each is there for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

REFERENCE = "fp32"
"""The arm that all others are compared with, seed by seed."""


@dataclass(frozen=True)
class Arm:
    """One way of averaging gradients.

    Attributes
    ----------
    name
        What results are filed under.
    purpose
        Why it is there, for the table.
    method
        `hook` for gradwire's DDP hook, `one_bit_adam`, or a hook of PyTorch: `torch`, `torch_fp16`,
        `torch_power_sgd`.
    codec
        The hook's codec.
    changes
        Fields of the hook's configuration.
    settings
        Settings of the engine, as in `gradwire.options`.
    link
        Rate of every host's link, as `20mbit`; not shaped if empty.
    compresses
        Whether fewer bytes must travel than without compression; a run where they do not fails.
    learning_rate
        Instead of the protocol's; for tuning.
    seeds
        How many seeds to run it on.
    """

    name: str
    purpose: str
    method: str = "hook"
    codec: str = "none"
    changes: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    link: str = ""
    compresses: bool = True
    learning_rate: float | None = None
    seeds: int = 3

    @property
    def backend(self) -> str:
        """The process group's backend."""
        return "gloo" if self.method.startswith("torch") else "gradwire"


CLAIMED = 10
"""Seeds of arms that a claim is made about."""


def _hook(codec: str, purpose: str, seeds: int = 3, **changes: Any) -> Arm:
    return Arm(codec, purpose, codec=codec, changes=changes, seeds=seeds)


WARM_UP_PART = 10
"""PowerSGD waits for one step in so many, as long as the learning rate rises."""

ONE_BIT_WARM_UP_PART = 5
"""1-bit Adam is plain AdamW for one step in so many."""

SLOW_LINK = "20mbit"
"""So slow that communication is exposed whatever the processors do, and the adaptive hook has to
spend its whole budget of error."""

_CONTROLS = [
    Arm(REFERENCE, "reference", compresses=False, seeds=CLAIMED),
    Arm("fp32 again", "null: must not differ", compresses=False),
    Arm("fp32 ring", "summation order permuted", settings={"algorithm": "ring"}, compresses=False),
    Arm("fp32 on Gloo", "another backend's sums", method="torch", compresses=False),
]

_CODECS = [
    _hook("int8", "quantizer", CLAIMED),
    _hook("int6", "quantizer: Hadamard, nearest", CLAIMED),
    _hook("int4", "quantizer: Hadamard, non-uniform grid, nearest", CLAIMED),
    Arm("adaptive", "tolerance 0.1 %", codec="adaptive", link=SLOW_LINK, seeds=CLAIMED),
    Arm("top_k 1 %", "positive control: must fail", codec="top_k", changes={"density": 0.01}),
    _hook("power_sgd", "rank 4, error feedback", rank=4),
    _hook("sign1", "signs of gradients, error feedback"),
    Arm("OneBitAdam", "signs of momentum, error feedback", method="one_bit_adam"),
    Arm("torch fp16 on Gloo", "PyTorch's fp16_compress_hook", method="torch_fp16"),
    Arm("torch PowerSGD on Gloo", "PyTorch's powerSGD_hook, rank 4", method="torch_power_sgd"),
]

_VARIANTS = [
    _hook("int4+no-hadamard", "int4 without smoothing"),
    _hook("int4+stochastic", "int4, unbiased rounding"),
    Arm(
        "int4 with feedback",
        "int4 + error feedback",
        codec="int4",
        changes={"error_feedback": True},
    ),
    _hook("int6+no-hadamard", "int6 without smoothing"),
    _hook("int5", "quantizer"),
    _hook("bf16", "linear"),
]

TUNED_RATES = (1e-3, 2e-3, 4e-3)

_TUNING = [
    Arm(name, "tuning", settings=settings, compresses=False, learning_rate=rate, seeds=2)
    for rate in TUNED_RATES
    for name, settings in (
        (f"fp32 at {rate:g}", {}),
        (f"fp32 ring at {rate:g}", {"algorithm": "ring"}),
    )
]

ARMS = [*_CONTROLS, *_CODECS, *_VARIANTS]
"""All arms, the reference first."""

SETS = {
    "4-ranks": [arm.name for arm in ARMS],
    "16-ranks": [REFERENCE, "fp32 again", "int8", "int6", "int4", "adaptive", "top_k 1 %"],
    "tuning": [arm.name for arm in _TUNING],
}
"""Which arms a protocol has."""

BY_NAME = {arm.name: arm for arm in [*ARMS, *_TUNING]}
"""Every arm by its name."""
