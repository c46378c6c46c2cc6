"""Spans of the computation in the engine's trace, and traces of a part of a run.

`GRADWIRE_TRACE=directory` records the whole run; `gradwire.profile(directory)` a part of it. The
engine records its operations, tiles, reductions and waits; the computation is recorded here:

    with tracing.span("layer3", "forward"):
        ...

`gradwire trace summary directory` knows these categories: "step" (one training step), "forward",
"backward" and "optimizer" (computation), and "wait" (the computation stands still for
communication, wherever that is waited for).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any

from gradwire._native import set_label

if TYPE_CHECKING:
    from gradwire._native import Engine

_engine: Engine | None = None
"""The engine that records, `None` while nothing is recorded."""

now = time.monotonic_ns
"""The trace's clock, in nanoseconds: `CLOCK_MONOTONIC`."""


def active() -> bool:
    """Return whether a trace is being recorded."""
    return _engine is not None


def record(
    name: str,
    category: str,
    start_ns: int,
    end_ns: int,
    arguments: Mapping[str, object] | None = None,
) -> None:
    """Record a span of the calling thread that is over.

    Parameters
    ----------
    name
        What is shown.
    category
        What kind of span it is; see the module's documentation.
    start_ns, end_ns
        Times of `now()`.
    arguments
        Whatever else is to be shown; values that JSON does not know become text.
    """
    engine = _engine
    if engine is not None:
        text = json.dumps(dict(arguments), default=str) if arguments else None
        engine.record_span(name, category, start_ns, end_ns, text)


def instant(name: str, category: str, **arguments: object) -> None:
    """Record that something happened now."""
    if _engine is not None:
        at = now()
        record(name, category, at, at, arguments)


class _Span:
    """A span that is open."""

    __slots__ = ("_arguments", "_category", "_name", "_start")

    def __init__(self, name: str, category: str, arguments: Mapping[str, object]) -> None:
        self._name = name
        self._category = category
        self._arguments = arguments

    def __enter__(self) -> None:
        self._start = now()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        record(self._name, self._category, self._start, now(), self._arguments)


class _NoSpan:
    """What a span is while nothing is recorded."""

    __slots__ = ()

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        pass


_NO_SPAN = _NoSpan()


def span(name: str, category: str, **arguments: object) -> _Span | _NoSpan:
    """Return a context manager that records a span of the calling thread.

    Parameters
    ----------
    name, category, **arguments
        As for `record`.
    """
    return _NO_SPAN if _engine is None else _Span(name, category, arguments)


@contextmanager
def label(text: str) -> Iterator[None]:
    """Give the operations that this thread starts inside a name, by which traces list them.

    Parameters
    ----------
    text
        The name, such as "bucket 3: blocks.2"; the same in every step, so that steps can be added.
    """
    if _engine is None:
        yield
        return
    outer = set_label(text)
    try:
        yield
    finally:
        set_label(outer)


@contextmanager
def profile(directory: str | os.PathLike[str], group: Any = None) -> Iterator[None]:
    """Record a trace of what happens inside and write `rank<N>.json` into a directory.

    Collective: all ranks enter and leave it, since their clocks are compared. `gradwire trace
    summary` explains the files, `gradwire trace merge` puts them into one; each opens in Perfetto
    (https://ui.perfetto.dev), beside what torch.profiler exports if that is wanted.

    Parameters
    ----------
    directory
        Made if need be; the files of an earlier trace in it are replaced.
    group
        A gradwire process group whose engine is traced; the default group if not given.

    Raises
    ------
    ValueError
        If the group is not gradwire's, or a trace is being recorded already.
    """
    engine = _engine_of(group)
    if engine.is_tracing():
        raise ValueError(
            "a trace is being recorded already (GRADWIRE_TRACE or another gradwire.profile)"
        )
    engine.start_trace()
    try:
        yield
    finally:
        engine.write_trace(directory)


def _engine_of(group: Any) -> Any:
    """Return the engine that serves a process group."""
    from gradwire.engines import default_engine

    engine = default_engine() if group is None else getattr(group, "_engine", None)
    if engine is None:
        raise ValueError(
            "profile needs a gradwire process group: call init_process_group('gradwire') first, "
            "or pass the group"
        )
    return engine


def attach(engine: Engine) -> None:
    """Send spans to an engine that has started to record; the last such engine gets them."""
    global _engine
    _engine = engine


def detach(engine: Engine) -> None:
    """Send spans nowhere, if they went to this engine."""
    global _engine
    if _engine is engine:
        _engine = None
