"""Error feedback: what a codec loses of a gradient is added to the next one.

Kept for each parameter, since DDP changes its buckets after the first step, in 8 bits, and in units
of this rank's own gradient, so that the sum over ranks is what the model has not yet been given.
(Seide et al. 2014; Karimireddy et al. 2019, arXiv 1901.09847; 8-bit residuals: LoCo, 2407.04480.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gradwire._native import Codec
from gradwire.compression.checkpoint import Named, by_identity, by_name

_CODEC = Codec("int8/128")


class _Residual:
    """Values in 8 bits.

    Attributes
    ----------
    elements
        How many.
    factor
        What they are multiplied by: another loss scale must not round them once more.
    """

    def __init__(self, values: Tensor) -> None:
        values = values.contiguous()
        self.elements = values.numel()
        self.factor = 1.0
        self._encoded = torch.empty(_CODEC.encoded_bytes(self.elements), dtype=torch.uint8)
        _CODEC.encode(_place(values), _place(self._encoded), 0)

    def saved(self) -> dict[str, Any]:
        """Return what `loaded` makes the same bits of."""
        return {"elements": self.elements, "factor": self.factor, "encoded": self._encoded}

    @classmethod
    def loaded(cls, saved: Mapping[str, Any]) -> _Residual:
        """Return what was saved."""
        residual = cls.__new__(cls)
        residual.elements, residual.factor = saved["elements"], saved["factor"]
        residual._encoded = saved["encoded"]
        if residual._encoded.numel() != _CODEC.encoded_bytes(residual.elements):
            raise ValueError("a saved residual is damaged: its length does not fit its elements")
        return residual

    def add_to(self, values: Tensor) -> None:
        """Add them to contiguous float32 values on the host."""
        if self.factor == 1.0:
            _CODEC.decode_add(_place(self._encoded), _place(values))
        else:
            values.add_(self.values())

    def values(self) -> Tensor:
        """Return them as they are."""
        values = torch.zeros(self.elements)
        _CODEC.decode_add(_place(self._encoded), _place(values))
        return values if self.factor == 1.0 else values.mul_(self.factor)


def _place(tensor: Tensor) -> tuple[int, int]:
    return tensor.data_ptr(), tensor.numel()


class ErrorFeedback:
    """The residuals of one rank.

    A step's residuals count once the step is over and all its gradients were finite: a step that
    an optimizer skips because of an infinity leaves them as they were.

    Parameters
    ----------
    decay
        What residuals are multiplied by from step to step.
    measures
        Whether `norm` is asked for: it takes a pass over each residual.
    """

    def __init__(self, decay: float = 1.0, *, measures: bool = False) -> None:
        self._decay = decay
        self._measures = measures
        self._kept: dict[int, _Residual] = {}
        self._next: dict[int, _Residual | None] = {}
        self._waiting: set[int] = set()
        self._squares: dict[int, float] = {}
        self._all_finite = True
        self._scale = 1.0

    def add(self, parameter: Tensor, gradient: Tensor) -> bool:
        """Add a parameter's residual to its gradient (float32, contiguous); true if it did.

        A gradient that is zero everywhere is one that this rank does not have. If no rank has one,
        nobody takes the sum: the residual waits for the next gradient.
        """
        kept = self._kept.get(id(parameter))
        if kept is None:
            return False
        if not bool(gradient.any()):
            self._waiting.add(id(parameter))
            return False
        if gradient.is_cpu:
            kept.add_to(gradient)
        else:
            gradient.add_(kept.values().to(gradient.device))
        return True

    def keep(self, parameter: Tensor, residual: Tensor | None) -> None:
        """Note what this step lost of a parameter's gradient; the tensor may be overwritten.

        `None` if it lost nothing, and gave what was kept before.
        """
        if residual is None:
            self._next[id(parameter)] = None
            self._squares[id(parameter)] = 0.0
            return
        if self._decay != 1.0:
            residual.mul_(self._decay)
        if id(parameter) in self._waiting:
            if not bool(residual.any()):
                return
            self._kept[id(parameter)].add_to(residual)
        self._next[id(parameter)] = _Residual(residual)
        if self._measures:
            self._squares[id(parameter)] = _square(residual)

    def note(self, finite: bool) -> None:
        """Note whether a reduced gradient of this step is finite; the same on all ranks."""
        self._all_finite &= finite

    def end_step(self, loss_scale: float | None = None) -> bool:
        """Take the step's residuals over, unless it met an infinity; true if it did not."""
        finite = self._all_finite
        if finite:
            for key, residual in self._next.items():
                if residual is None:
                    self._kept.pop(key, None)
                else:
                    self._kept[key] = residual
        self._next.clear()
        self._waiting.clear()
        self._all_finite = True
        if loss_scale is not None and loss_scale != self._scale:
            self.scale(loss_scale / self._scale)
            self._scale = loss_scale
        return finite

    def scale(self, factor: float) -> None:
        """Multiply all residuals, as when the loss scale changes."""
        for residual in self._kept.values():
            residual.factor *= factor
        for key in self._squares:
            self._squares[key] *= factor**2

    def clear(self) -> None:
        """Forget all residuals."""
        self._kept.clear()
        self._next.clear()
        self._waiting.clear()
        self._squares.clear()

    def norm(self) -> float:
        """Return the norm of all residuals together, as the last steps left them; 0 unmeasured."""
        return sum(self._squares.values()) ** 0.5

    def state_dict(self, parameters: Named) -> dict[str, Any]:
        """Return this rank's residuals by the names of their parameters."""
        residuals = by_name(self._kept, parameters)
        return {
            "residuals": {name: residual.saved() for name, residual in residuals.items()},
            "loss_scale": self._scale,
        }

    def load_state_dict(
        self, states: Sequence[Mapping[str, Any]], rank: int, size: int, parameters: Named
    ) -> None:
        """Take over residuals, those of all old ranks in their order.

        What the old ranks together had not yet given to the model is given by the new ones: if
        their number has changed, rank `r` takes the residuals of the old ranks `r`, `r + size` ...,
        weighted so that their mean over ranks stays what it was.

        Raises
        ------
        ValueError
            If the residuals are not those of these parameters.
        """
        if len(states) == size:
            saved = states[rank]["residuals"]
            residuals = {name: _Residual.loaded(one) for name, one in saved.items()}
        else:
            residuals = _gathered(states[rank::size], size / len(states))
        elements = {name: parameter.numel() for name, parameter in parameters}
        for name, residual in residuals.items():
            if residual.elements != elements.get(name, residual.elements):
                raise ValueError(
                    f"the residual of {name!r} has {residual.elements} elements, the parameter "
                    f"{elements[name]}; load the state of the same model"
                )
        kept = by_identity(residuals, parameters)
        self.clear()
        self._kept = kept
        self._scale = float(states[0]["loss_scale"])
        if self._measures:
            self._squares = {key: _square(one.values()) for key, one in kept.items()}


def _gathered(states: Sequence[Mapping[str, Any]], weight: float) -> dict[str, _Residual]:
    """Return the weighted sums of several ranks' residuals."""
    sums: dict[str, Tensor] = {}
    for state in states:
        for name, one in state["residuals"].items():
            scaled = _Residual.loaded(one).values() * weight
            sums[name] = sums[name] + scaled if name in sums else scaled
    return {name: _Residual(values) for name, values in sums.items()}


def _square(values: Tensor) -> float:
    return float(torch.linalg.vector_norm(values)) ** 2
