"""Follows the ranks' event files while they are written, and reads failures out of them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from result import Event

ENDING = re.compile(r"rank (\d+)(?: on host \d+)? ((?:exited|was ended) .*)")
UNKNOWN = "ended without a word"


class EventFollower:
    """Reads one rank's event file as it grows.

    Parameters
    ----------
    path
        The file; it need not exist yet.

    Attributes
    ----------
    events
        All events read so far.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._offset = path, 0
        self.events: list[Event] = []

    def read(self) -> list[Event]:
        """Return the events that were added since the last call; a half-written line waits."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            added = file.read()
        whole = added[: added.rfind(b"\n") + 1]
        self._offset += len(whole)
        new: list[dict[str, Any]] = [json.loads(line) for line in whole.splitlines()]
        self.events.extend(new)
        return list(new)


def diagnose(ranks: Sequence[Sequence[Event]], failures: Sequence[str]) -> list[str]:
    """Say which ranks failed and why, the likely culprit first.

    A rank that neither finished nor said why it failed was killed or crashed; what the others
    report is then its consequence. Else whoever failed first comes first.

    Parameters
    ----------
    ranks
        Each rank's events, rank 0 first.
    failures
        How processes and ranks ended, from :meth:`launch.Job.failures`.

    Returns
    -------
    list of str
        One line for each finding.
    """
    if not any(ranks):
        return ["no rank came so far as to report anything", *failures]
    endings = {int(found[1]): found[2] for found in map(ENDING.fullmatch, failures) if found}
    silent = [
        rank
        for rank, events in enumerate(ranks)
        if not any(event["event"] in ("finished", "failed") for event in events)
    ]
    # Where the launcher knows how some of them ended, it has ended the others itself.
    culprits = [rank for rank in silent if rank in endings] or silent
    failed = sorted(
        (event["at"], f"rank {rank} failed {_place(events)}: {event['error']}")
        for rank, events in enumerate(ranks)
        for event in events
        if event["event"] == "failed"
    )
    return [
        *(f"rank {rank} {endings.get(rank, UNKNOWN)} {_place(ranks[rank])}" for rank in culprits),
        *(line for _, line in failed),
        *(line for line in failures if not ENDING.fullmatch(line)),
    ]


def _place(events: Sequence[Event]) -> str:
    steps = [event["step"] for event in events if event["event"] == "step"]
    if steps:
        return f"after step {steps[-1]}"
    started = any(event["event"] == "started" for event in events)
    return "before its first step" if started else "while it joined the job"
