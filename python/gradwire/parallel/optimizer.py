"""Running any optimizer bucket by bucket.

An optimizer of torch works on what its `param_groups` name. So one bucket is updated by letting
its own `step` see groups with that bucket's parameters alone, with the settings (learning rate and
so on) that were in force when the training loop called `step`. That is right for every optimizer
that treats parameters independently: SGD, Adam, AdamW, Adagrad, RMSprop and their kin, `fused` and
`foreach` forms included.
"""

from __future__ import annotations

import itertools
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim import LBFGS, Optimizer
from torch.optim.optimizer import (
    _global_optimizer_post_hooks,
    _global_optimizer_pre_hooks,
)

Settings = list[dict[str, Any]]
"""For each parameter group everything but its parameters."""

Places = list[tuple[int, list[Tensor]]]
"""Numbers of parameter groups, and parameters in each."""


def joined(several: Iterable[Places]) -> Places:
    """Return one set of places of several, with each parameter group once."""
    together: dict[int, list[Tensor]] = {}
    for number, parameters in itertools.chain.from_iterable(several):
        together.setdefault(number, []).extend(parameters)
    return sorted(together.items(), key=lambda place: place[0])


class Owner(Protocol):
    """What decides when updates take place."""

    def before_groups(self) -> None:
        """Take note that the parameter groups are about to be read."""

    def step(self) -> None:
        """Update all parameters, now or later."""

    def zero_grad(self, set_to_none: bool) -> None:
        """Let the gradients go, as soon as they are not needed."""

    def synchronize(self) -> None:
        """Bring everything that is under way to its end."""


class OptimizerTakeover:
    """An optimizer whose `step` belongs to somebody else until `undo`.

    Its class becomes a subclass of its own, so `isinstance` holds, and learning rate schedulers,
    gradient scalers and checkpoints work with it as before.

    Parameters
    ----------
    optimizer
        The optimizer.
    owner
        Decides what happens on a step.
    """

    def __init__(self, optimizer: Optimizer, owner: Owner) -> None:
        if isinstance(optimizer, LBFGS):
            raise TypeError(
                "LBFGS looks at all parameters at once and at the loss again and again; "
                "parallelize needs an optimizer that treats parameters independently"
            )
        if "_gradwire_owner" in optimizer.__dict__:
            raise ValueError("the optimizer is parallelized already; leave() that first")
        self._optimizer = optimizer
        self._class = type(optimizer)
        self._update = _bare_step(self._class)
        self._own_step = optimizer.__dict__.get("step")
        optimizer.__class__ = _subclass(self._class)
        optimizer.__dict__["_gradwire_owner"] = owner
        optimizer.__dict__["step"] = types.MethodType(_step, optimizer)

    def undo(self) -> None:
        """Give the optimizer its own class and step back."""
        del self._optimizer.__dict__["step"], self._optimizer.__dict__["_gradwire_owner"]
        if self._own_step is not None:
            self._optimizer.__dict__["step"] = self._own_step
        self._optimizer.__class__ = self._class

    def _groups(self) -> list[dict[str, Any]]:
        groups: list[dict[str, Any]] = self._optimizer.__dict__["param_groups"]
        return groups

    def settings(self) -> Settings:
        """Return the settings in force now, to be used later."""
        return [
            {name: _frozen(value) for name, value in group.items() if name != "params"}
            for group in self._groups()
        ]

    def places(self, parameters: Iterable[Tensor]) -> Places:
        """Return where parameters stand; those that the optimizer does not know are left out."""
        wanted = {id(parameter) for parameter in parameters}
        places = []
        for number, group in enumerate(self._groups()):
            inside = [parameter for parameter in group["params"] if id(parameter) in wanted]
            if inside:
                places.append((number, inside))
        return places

    def others(self, parameters: Iterable[Tensor]) -> list[Tensor]:
        """Return the optimizer's parameters that are not among these."""
        known = {id(parameter) for parameter in parameters}
        every = itertools.chain.from_iterable(group["params"] for group in self._groups())
        return [parameter for parameter in every if id(parameter) not in known]

    def update(self, places: Places, settings: Settings) -> None:
        """Update some parameters by their gradients."""
        groups = self._groups()
        self._optimizer.__dict__["param_groups"] = [
            {**settings[number], "params": parameters} for number, parameters in places
        ]
        try:
            # State made in inference mode could not be updated outside of it, and an update is not
            # part of a forward's mixed precision.
            kind = places[0][1][0].device.type
            with torch.inference_mode(False), torch.autocast(kind, enabled=False), torch.no_grad():
                self._update(self._optimizer)
            self._check_unchanged(places, settings)
        finally:
            self._optimizer.__dict__["param_groups"] = groups

    def _check_unchanged(self, places: Places, settings: Settings) -> None:
        """Refuse optimizers that keep state in their groups: they would count buckets for steps."""
        for (number, _), group in zip(places, self._groups(), strict=True):
            for name, value in group.items():
                if name != "params" and value is not settings[number].get(name):
                    raise TypeError(
                        f"{self._class.__name__} keeps {name!r} in its parameter groups from step "
                        "to step; parallelize needs an optimizer that keeps state for parameters"
                    )

    @property
    def is_scaled(self) -> bool:
        """Whether a gradient scaler leaves it to this step to unscale or skip, as with `fused`."""
        marks = ("grad_scale", "found_inf")
        return any(getattr(self._optimizer, mark, None) is not None for mark in marks)

    def parameters_zeroed(self, parameters: Sequence[Tensor], set_to_none: bool) -> None:
        """Do for some parameters what `zero_grad` does."""
        for parameter in parameters:
            if parameter.grad is None:
                continue
            if set_to_none:
                parameter.grad = None
            else:
                parameter.grad.detach_()
                parameter.grad.zero_()


def _frozen(value: Any) -> Any:
    """Return a setting as it is now; a learning rate that is a tensor is changed in place."""
    return value.clone() if isinstance(value, Tensor) else value


def _bare_step(kind: type[Optimizer]) -> Callable[[Optimizer], Any]:
    """Return a class's step without the hooks around it, which run once for a whole step."""
    step = kind.step
    return step.__wrapped__ if getattr(step, "hooked", False) else step  # type: ignore[attr-defined]


def _step(self: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
    """Let the owner update all parameters; as the optimizer's own `step` otherwise."""
    arguments: tuple[Any, ...] = (self, (closure,) if closure is not None else (), {})
    for hook in [*_global_optimizer_pre_hooks.values(), *self._optimizer_step_pre_hooks.values()]:
        hook(*arguments)
    loss = None
    if closure is not None:
        with torch.enable_grad():
            loss = closure()
    self._opt_called = True  # type: ignore[attr-defined] # What learning rate schedulers look for.
    self.__dict__["_gradwire_owner"].step()
    for hook in [*self._optimizer_step_post_hooks.values(), *_global_optimizer_post_hooks.values()]:
        hook(*arguments)
    return loss


# Learning rate schedulers would otherwise wrap it.
_step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]


def _subclass(kind: type[Optimizer]) -> type[Optimizer]:
    """Return a class that asks the owner before it shows or changes anything."""

    class Parallelized(kind):  # type: ignore[misc, valid-type]
        @property
        def param_groups(self) -> list[dict[str, Any]]:
            self.__dict__["_gradwire_owner"].before_groups()
            groups: list[dict[str, Any]] = self.__dict__["param_groups"]
            return groups

        @param_groups.setter
        def param_groups(self, groups: list[dict[str, Any]]) -> None:
            self.__dict__["param_groups"] = groups

        def zero_grad(self, set_to_none: bool = True) -> None:
            self.__dict__["_gradwire_owner"].zero_grad(set_to_none)

        def state_dict(self) -> dict[str, Any]:
            self.__dict__["_gradwire_owner"].synchronize()
            return super().state_dict()

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            self.__dict__["_gradwire_owner"].synchronize()
            super().load_state_dict(state_dict)

        def add_param_group(self, param_group: dict[str, Any]) -> None:
            raise RuntimeError(
                "leave() before you add parameters to the optimizer, then parallelize again"
            )

    Parallelized.__name__, Parallelized.__qualname__ = kind.__name__, kind.__qualname__
    Parallelized.__module__ = kind.__module__
    return Parallelized
