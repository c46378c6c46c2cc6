"""Keep torch.compile out of gradwire's own functions."""

from __future__ import annotations

import inspect
from types import CodeType, ModuleType
from typing import Any

from torch._C._dynamo import eval_frame


def skip(*modules: ModuleType) -> None:
    """Make torch.compile run the functions of `modules` as they are.

    Compiled code reaches collectives through operators that the compiler knows. But where it gives
    up on a frame (it does in DDP's), it tries the functions called from there one by one, and a
    process group is an object that it refuses to look into.

    Parameters
    ----------
    modules
        Their functions, methods and properties are marked, and all that those call.
    """
    skipped = eval_frame._FrameAction.SKIP
    strategy = eval_frame._FrameExecStrategy(skipped, skipped)
    for module in modules:
        for value in vars(module).values():
            if getattr(value, "__module__", None) != module.__name__:
                continue
            members = vars(value).values() if inspect.isclass(value) else [value]
            for member in members:
                for code in _codes(member):
                    eval_frame.set_code_exec_strategy(code, strategy)


def _codes(member: Any) -> list[CodeType]:
    """Return the code of a function or a property, and of the functions defined inside."""
    function = member.fget if isinstance(member, property) else member
    code = getattr(inspect.unwrap(function), "__code__", None) if callable(function) else None
    pending = [code] if isinstance(code, CodeType) else []
    codes = []
    while pending:
        codes.append(pending.pop())
        pending.extend(inner for inner in codes[-1].co_consts if isinstance(inner, CodeType))
    return codes
