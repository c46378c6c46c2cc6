"""One step of one rank as the engine traced it: what computed, and what was under way."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

COMPUTATION = ("forward", "backward", "optimizer")
WAITING, OPERATION = "gradwire.wait", "gradwire.operation"


@dataclass(frozen=True)
class Span:
    """Something that took time.

    Attributes
    ----------
    kind
        One of :data:`COMPUTATION`, :data:`WAITING` or :data:`OPERATION`.
    name
        What it was.
    start_ms, end_ms
        From the start of the step.
    """

    kind: str
    name: str
    start_ms: float
    end_ms: float


@dataclass(frozen=True)
class Timeline:
    """One step.

    Attributes
    ----------
    milliseconds
        How long it took.
    spans
        What happened in it.
    """

    milliseconds: float
    spans: list[Span] = field(default_factory=list)


def read(path: Path) -> Timeline | None:
    """Read the last whole step out of one rank's trace; None if there is none."""
    events = [one for one in json.loads(path.read_text())["traceEvents"] if one["ph"] == "X"]
    steps = [(one["ts"], one["ts"] + one["dur"]) for one in events if one["cat"] == "step"]
    if not steps:
        return None
    begin, end = steps[-1]
    kinds = {*COMPUTATION, WAITING, OPERATION}
    inside = (one for one in events if one["cat"] in kinds)
    return Timeline((end - begin) / 1e3, sorted(_clipped(inside, begin, end), key=_start))


def _clipped(events: Iterable[Mapping[str, Any]], begin: float, end: float) -> Iterable[Span]:
    for event in events:
        start, stop = max(begin, event["ts"]), min(end, event["ts"] + event["dur"])
        if stop > start:
            yield Span(event["cat"], event["name"], (start - begin) / 1e3, (stop - begin) / 1e3)


def _start(span: Span) -> float:
    return span.start_ms


def rows(spans: Iterable[Span]) -> list[list[Span]]:
    """Stack spans that overlap; each row's are one after the other."""
    stacked: list[list[Span]] = []
    for span in sorted(spans, key=_start):
        row = next((row for row in stacked if row[-1].end_ms <= span.start_ms), None)
        if row is None:
            stacked.append([span])
        else:
            row.append(span)
    return stacked
