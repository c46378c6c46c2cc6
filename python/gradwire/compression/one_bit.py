"""1-bit Adam: momentum travels as signs once the variance has settled.

Tang et al. 2021 (arXiv 2102.02888). Signs of raw gradients under Adam do not train: its variance is
not linear in what it is given. So the first steps are plain Adam; then the variance is frozen, and
what is averaged over ranks is the momentum, one bit an element with a scale for each block, with
error feedback on both ways.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gradwire.compression.checkpoint import all_states, is_of_rank, of_rank
from gradwire.compression.error_feedback import ErrorFeedback
from gradwire.compression.operations import gradwire_group

CODEC = "sign1"

LEAST_DEVIATION = 0.25
"""Deviations below this part of their tensor's mean count as this once momentum is encoded."""


class OneBitAdam(torch.optim.Optimizer):
    """Adam that does its own communication: the model must not be wrapped in DDP.

    With a gradient scaler, ranks skip a step together: where one of them overflows, none updates.

    Parameters
    ----------
    params
        Parameters or groups of them; float32, on the host or a CUDA device, alike on all ranks.
    lr, betas, eps, weight_decay
        As in `torch.optim.AdamW`.
    warm_up_steps
        Steps of plain AdamW on averaged gradients that each parameter begins with; 15 to 25 % of
        training is usual.
    group
        The process group, gradwire's; the default group if not given.
    """

    _step_supports_amp_scaling = True
    """Gradient scalers leave it to `step` to unscale and to skip, since ranks have to agree."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        warm_up_steps: int,
        group: Any = None,
    ) -> None:
        if warm_up_steps < 1:
            raise ValueError("warm_up_steps must be at least 1: the variance has to settle first")
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults)
        self._group = gradwire_group(group)
        self._warm_up_steps = warm_up_steps
        self._feedback = ErrorFeedback()

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Average over ranks and update the parameters."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        members = [
            (parameter, group)
            for group in self.param_groups
            for parameter in group["params"]
            if parameter.grad is not None
        ]
        if self._overflows_anywhere():
            return loss
        # A gradient scaler sets it around `step`, unless gradients are unscaled already.
        grad_scale = getattr(self, "grad_scale", None)
        if grad_scale is not None:
            for parameter, _ in members:
                parameter.grad.div_(grad_scale)
        for parameter, _ in members:
            self._begin(parameter)
        warming = [it for it in members if self._is_warming(it[0])]
        self._average([parameter.grad for parameter, _ in warming])
        for parameter, group in warming:
            self._update_moments(parameter, group)
        self._average_momentum([it for it in members if not self._is_warming(it[0])])
        for parameter, group in members:
            self._update(parameter, group)
        return loss

    def _overflows_anywhere(self) -> bool:
        # A gradient scaler sets it around `step`: above 0 where a gradient of this rank overflowed.
        found_inf = getattr(self, "found_inf", None)
        if found_inf is None:
            return False
        found = found_inf.reshape(1).float()
        self._group._reduce_in_place("all_reduce", found, dist.ReduceOp.MAX, 0, None).wait()
        return bool(found.item() > 0)

    def _begin(self, parameter: Tensor) -> None:
        state = self.state[parameter]
        if not state:
            state["exp_avg"] = torch.zeros_like(parameter, memory_format=torch.contiguous_format)
            state["exp_avg_sq"] = torch.zeros_like(state["exp_avg"])
            state["steps"] = 0
        state["steps"] += 1

    def _is_warming(self, parameter: Tensor) -> bool:
        return bool(self.state[parameter]["steps"] <= self._warm_up_steps)

    def _average(self, tensors: list[Tensor]) -> None:
        works = [
            self._group._reduce_in_place("all_reduce", tensor, dist.ReduceOp.AVG, 0, None)
            for tensor in tensors
        ]
        for work in works:
            work.wait()

    def _update_moments(self, parameter: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        first, second = group["betas"]
        state["exp_avg"].lerp_(parameter.grad, 1 - first)
        state["exp_avg_sq"].mul_(second).addcmul_(parameter.grad, parameter.grad, value=1 - second)

    def _average_momentum(self, members: list[tuple[Tensor, dict[str, Any]]]) -> None:
        """Average this step's local momenta, encoded; small tensors travel as they are."""
        if not members:
            return
        running = []
        small = []
        for parameter, group in members:
            momentum = self.state[parameter]["exp_avg"]
            momentum.lerp_(parameter.grad, 1 - group["betas"][0])
            if parameter.dim() < 2:
                small.append(momentum)
                continue
            flat = momentum.view(-1)
            self._feedback.add(parameter, flat)
            error = torch.empty(flat.shape)
            work = self._group._reduce_with_codec(flat, "avg", CODEC, error)
            running.append((work, parameter, flat, error))
        self._average(small)
        for work, parameter, flat, error in running:
            work.wait()
            self._feedback.keep(parameter, error)
            self._feedback.note(bool(torch.isfinite(flat).all()))
        self._feedback.end_step()

    def _update(self, parameter: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        first, second = group["betas"]
        settled = min(state["steps"], self._warm_up_steps)
        deviation = (state["exp_avg_sq"] / (1 - second**settled)).sqrt_().add_(group["eps"])
        if not self._is_warming(parameter) and parameter.dim() > 1:
            # Signs give every element its block's size, those too that hardly ever move.
            deviation.clamp_(min=float(LEAST_DEVIATION * deviation.mean()))
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        step = -group["lr"] / (1 - first ** state["steps"])
        parameter.addcdiv_(state["exp_avg"], deviation, value=step)

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's state; all but the residuals in `feedback` is alike on all ranks."""
        return {
            **super().state_dict(),
            "feedback": {
                **of_rank(self._group.rank(), self._group.size()),
                **self._feedback.state_dict(self._numbered()),
            },
        }

    def load_state_dict(self, state_dict: dict[str, Any] | Sequence[dict[str, Any]]) -> None:
        """Go on from a saved state.

        From this rank's own it goes on bit for bit. The states of all old ranks, in their order,
        also do where the number of ranks has changed: the sum of residuals is carried over. With
        another rank's alone residuals start empty, which a warning says.
        """
        rank, size = self._group.rank(), self._group.size()
        if isinstance(state_dict, Mapping):
            first, saved = state_dict, [state_dict["feedback"]] * size
            if not is_of_rank(saved[0], rank, size):
                warnings.warn(
                    f"rank {rank} of {size} loads the state of rank {saved[0]['rank']} of "
                    f"{saved[0]['ranks']}: its residuals are dropped",
                    stacklevel=2,
                )
                saved = [{**saved[0], "residuals": {}}] * size
        else:
            first = state_dict[0]
            saved = list(all_states([one["feedback"] for one in state_dict], rank, size))
        self._feedback.load_state_dict(saved, rank, size, self._numbered())
        super().load_state_dict({part: first[part] for part in ("state", "param_groups")})

    def _numbered(self) -> list[tuple[str, Tensor]]:
        """Return the parameters with their numbers, by which torch saves their state too."""
        every = (parameter for group in self.param_groups for parameter in group["params"])
        return [(str(number), parameter) for number, parameter in enumerate(every)]
