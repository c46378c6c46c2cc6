"""The order of operations that futures' callbacks start.

The ranks of a group match operations by the order in which each rank starts them. Callbacks break
that order: PyTorch's PowerSGD hook starts all-reduces in callbacks, which run when the operation
before them ends, for several buckets at once and on every rank in another order.

So an operation that a callback starts is not numbered among the group's other operations. It is
matched by its lineage: which operation's future it follows, and the how-many-th callback this is.
Every lineage is a channel, a communicator of its own among the group's ranks. Callbacks that run at
once because the future was complete already get the same lineage as those that run later.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

from torch.futures import Future

from gradwire._native import Communicator

_CYCLE = 1024
"""Numbers of operations are taken modulo this, to bound the number of channels of a group."""


class _Context(threading.local):
    path: str | None = None


CONTEXT = _Context()
"""`path` is the lineage of the callback that the current thread is in, `None` outside."""


class Channel:
    """A communicator whose operations are numbered in the order of their start.

    Parameters
    ----------
    path
        The lineage, the same on all ranks.
    communicator
        The engine's communicator.
    """

    __slots__ = ("communicator", "numbers", "path", "submit")

    def __init__(self, path: str, communicator: Communicator) -> None:
        self.path = path
        self.communicator = communicator
        self.submit = communicator.submit
        self.numbers = itertools.count()


def path_of(channel: Channel, number: int) -> str:
    """Return the lineage of what follows operation `number` of `channel`."""
    return f"{channel.path}>{number % _CYCLE}"


class FailedResult:
    """The value of a failed future as C++ sees it: whatever is done with it raises the error."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __repr__(self) -> str:
        return f"the result of a failed operation ({self.error})"  # C++ quotes it.

    def __len__(self) -> int:
        raise self.error

    def __getitem__(self, index: int) -> Any:
        raise self.error

    def __reduce__(self) -> Any:
        raise self.error


def _raise_if_failed(value: Any) -> Any:
    if isinstance(value, FailedResult):
        raise value.error
    return value


class OperationFuture(Future[Any]):
    """A future whose callbacks know their lineage.

    Parameters
    ----------
    path
        The lineage of its callbacks, `None` if they have none.
    devices
        The devices of the value's tensors, if they are not on the host.
    """

    def __init__(self, path: str | None, devices: list[Any]) -> None:
        super().__init__(devices=devices)
        self._path = path
        self._callback_devices = devices
        self._callbacks = itertools.count()
        self._set_unwrap_func(_raise_if_failed)

    def fail(self, error: BaseException) -> None:
        """Complete the future with an error, for Python's readers and for C++'s."""
        self.set_result(FailedResult(error))

    def then(self, callback: Callable[[Future[Any]], Any]) -> OperationFuture:
        """Run `callback` with this future once it is complete; return the future of its result."""
        path = self._next_path()
        following = OperationFuture(path, self._callback_devices)

        def run(_: Future[Any]) -> None:
            outer, CONTEXT.path = CONTEXT.path, path
            try:
                result = callback(self)
            except Exception as error:  # noqa: BLE001 - whoever reads the future gets it
                following.fail(error)
            else:
                following.set_result(result)
            finally:
                CONTEXT.path = outer

        super().add_done_callback(run)
        return following

    def add_done_callback(self, callback: Callable[[Future[Any]], None]) -> None:
        """Run `callback` with this future once it is complete."""
        path = self._next_path()

        def run(_: Future[Any]) -> None:
            outer, CONTEXT.path = CONTEXT.path, path
            try:
                callback(self)
            finally:
                CONTEXT.path = outer

        super().add_done_callback(run)

    def _next_path(self) -> str | None:
        """Return the lineage of the next callback; a chain of single callbacks shares one."""
        index = next(self._callbacks)
        return self._path if index == 0 or self._path is None else f"{self._path}.{index}"
