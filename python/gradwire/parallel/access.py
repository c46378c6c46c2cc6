"""Noticing that a parameter is about to be used.

A module finds `self.weight` in its dictionary of parameters. That dictionary is exchanged for one
that first lets whatever is under way with the parameter come to its end, as DeepSpeed's ZeRO-3
does: so a layer's forward waits for its own parameters, and so does everything else that reads one:
`state_dict`, `clip_grad_norm_(model.parameters())`, a tied weight, an evaluation.
"""

from __future__ import annotations

from collections.abc import Callable, ItemsView, ValuesView
from typing import Any

from torch import nn
from torch._dynamo.eval_frame import OptimizedModule


class AwaitedParameters(dict[str, Any]):
    """A module's parameters, of which each is awaited when it is read.

    Parameters
    ----------
    parameters
        The module's own dictionary.
    settle
        Called with a parameter before it is handed out.
    """

    def __init__(self, parameters: dict[str, Any], settle: Callable[[Any], None]) -> None:
        super().__init__(parameters)
        self._settle = settle

    def __getitem__(self, name: str) -> Any:
        parameter = super().__getitem__(name)
        if parameter is not None:
            self._settle(parameter)
        return parameter

    def get(self, name: str, default: Any = None) -> Any:
        """Return a parameter, awaited."""
        return self[name] if name in self else default  # noqa: SIM401 - this is `get`

    def values(self) -> ValuesView[Any]:  # type: ignore[override]
        """Return all parameters, awaited."""
        self._settle_all()
        return super().values()

    def items(self) -> ItemsView[str, Any]:  # type: ignore[override]
        """Return all names and parameters, awaited."""
        self._settle_all()
        return super().items()

    def _settle_all(self) -> None:
        for parameter in super().values():
            if parameter is not None:
                self._settle(parameter)

    def __reduce__(self) -> Any:
        # A copy of the model is a model like any other.
        self._settle_all()
        return dict, (dict(super().items()),)


class Access:
    """The exchanged dictionaries and the hooks of one model.

    A compiled module reads its parameters where no dictionary is asked, so all of them are awaited
    before it runs. So are those of modules that keep references of their own, like `nn.LSTM`.

    Parameters
    ----------
    module
        The model.
    settle
        Called with a parameter that is about to be used.
    """

    def __init__(self, module: nn.Module, settle: Callable[[Any], None]) -> None:
        self._settle = settle
        self._exchanged: list[nn.Module] = []
        self._hooks: list[Any] = []
        compiled: set[nn.Module] = set()
        for child in module.modules():
            if _is_compiled(child) and child not in compiled:
                compiled.update(child.modules())
                self._await_before(child, list(child.parameters()))
        for child in module.modules():
            own = [parameter for parameter in child._parameters.values() if parameter is not None]
            if child not in compiled and own:
                self._exchanged.append(child)
                child._parameters = AwaitedParameters(child._parameters, settle)
                if isinstance(child, nn.RNNBase):
                    self._await_before(child, own)

    def _await_before(self, module: nn.Module, parameters: list[Any]) -> None:
        def wait(*_: object) -> None:
            for parameter in parameters:
                self._settle(parameter)

        self._hooks.append(module.register_forward_pre_hook(wait))

    def undo(self) -> None:
        """Give the modules their own dictionaries back."""
        for hook in self._hooks:
            hook.remove()
        for child in self._exchanged:
            # Through the base class: whatever was under way is over.
            child._parameters = dict(dict.items(child._parameters))
        self._exchanged.clear()


def _is_compiled(module: nn.Module) -> bool:
    return isinstance(module, OptimizedModule) or module._compiled_call_impl is not None
