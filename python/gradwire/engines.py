"""Which engine serves which process group.

A process has one engine as long as its default group is gradwire's; its sub-groups are further
communicators of that engine. A gradwire group beside a default group of another backend gets an
engine of its own.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from torch._C._distributed_c10d import PrefixStore

from gradwire import tracing
from gradwire._native import Communicator, Engine


class SharedEngine:
    """An engine and the communicators that have been opened on it.

    Parameters
    ----------
    store
        The rendezvous store; not used by others at the same time.
    rank, size
        This process among the engine's processes.
    timeout
        Seconds until an operation fails, unless its group or the operation says otherwise.
    settings
        Overrides of `GRADWIRE_*` variables, by the lower-case rest of the variable's name.
    """

    def __init__(
        self, store: Any, rank: int, size: int, timeout: float, settings: Mapping[str, str]
    ) -> None:
        self._engine = Engine(rank, size, _fresh_store(store, rank), timeout, dict(settings))
        if self._engine.is_tracing():  # By the setting `trace`, until the engine ends.
            tracing.attach(self._engine)
        self._names: Counter[str] = Counter()
        self._closed = False
        _open.add(self)

    def instance(self, name: str) -> str:
        """Return a name for a new group, also if a destroyed one had the name `name`."""
        self._names[name] += 1
        return f"{name}#{self._names[name]}"

    def communicator(self, name: str, ranks: Sequence[int], timeout: float) -> Communicator:
        """Open a communicator.

        Parameters
        ----------
        name
            Unique, and the same on all members.
        ranks
            The members' engine ranks, in the order of their group ranks.
        timeout
            Seconds until an operation fails.
        """
        communicator = self._engine.communicator(name, list(ranks))
        communicator.set_timeout(timeout)
        return communicator

    def counters(self) -> dict[str, int]:
        """Return the engine's counters."""
        return self._engine.counters()

    def count_encoded(self, before: int, after: int) -> None:
        """Count bytes that were encoded outside of the engine, before and after."""
        self._engine.count_encoded(before, after)

    def start_trace(self) -> None:
        """Start to record a trace; all ranks of the engine do so."""
        self._engine.start_trace()
        tracing.attach(self._engine)

    def write_trace(self, directory: str | os.PathLike[str]) -> str:
        """End the trace and write this rank's file into `directory`; return its path."""
        tracing.detach(self._engine)
        return str(self._engine.write_trace(directory))

    def is_tracing(self) -> bool:
        """Return whether a trace is being recorded."""
        return self._engine.is_tracing()

    def limit_in_flight(self, bytes: int | None) -> None:
        """Keep the bytes on their way to each peer over TCP to about so many; `None`: no limit."""
        self._engine.limit_in_flight(bytes)

    def close(self) -> None:
        """Shut the engine down; operations in progress fail."""
        global _default
        with _lock:
            if self._closed:
                return
            self._closed = True
            if _default is self:
                _default = None
        tracing.detach(self._engine)
        self._engine.shutdown()


_lock = threading.Lock()
_default: SharedEngine | None = None
_open: weakref.WeakSet[SharedEngine] = weakref.WeakSet()


def default_engine() -> SharedEngine | None:
    """Return the engine of the default process group, `None` if that is not gradwire's."""
    return _default


def start_default_engine(
    store: Any, rank: int, size: int, timeout: float, settings: Mapping[str, str]
) -> SharedEngine:
    """Start the engine of the default process group."""
    global _default
    engine = SharedEngine(store, rank, size, timeout, settings)
    _default = engine
    return engine


def _fresh_store(store: Any, rank: int) -> Any:
    """Return a part of `store` that no earlier engine has used, on a connection of its own.

    A store may outlive the process group (torchrun's agent keeps one), so keys are put under the
    number of engines that this rank has started on it; all ranks start equally many.
    """
    generation = store.add(f"gradwire/engines/{rank}", 1)
    fresh = PrefixStore(f"gradwire/{generation}", store)
    try:
        return fresh.clone()
    except (RuntimeError, AttributeError):
        return fresh  # This kind of store has no connection that could be held up.


def _close_all() -> None:
    for engine in list(_open):
        engine.close()


def _forget_after_fork() -> None:
    global _default
    _default = None
    _open.clear()


# The engine's threads use Python's store objects; they must end before the interpreter does.
atexit.register(_close_all)
os.register_at_fork(after_in_child=_forget_after_fork)
