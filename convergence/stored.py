"""Results in the tree: one JSON line for each run, appended and never changed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from protocol import Protocol


def append(path: Path, result: dict[str, Any]) -> None:
    """Append a run's result in one write, so that an interruption leaves whole lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(result) + "\n")


def load(path: Path) -> list[dict[str, Any]]:
    """Return all results of a file, the first of each (arm, seed) only; none if it is missing.

    Raises
    ------
    ValueError
        A line is damaged.
    """
    if not path.exists():
        return []
    results: dict[tuple[str, int], dict[str, Any]] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            result = json.loads(line)
            results.setdefault((result["arm"], result["seed"]), result)
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path}:{number} is no result ({error}); delete the line") from None
    return list(results.values())


def missing(results: list[dict[str, Any]], seeds: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return the (arm, seed) pairs without a result, all arms of a seed before the next seed.

    Parameters
    ----------
    results
        What there is.
    seeds
        How many seeds each arm is to have.
    """
    done = {(result["arm"], result["seed"]) for result in results}
    wanted = [(arm, seed) for arm, count in seeds.items() for seed in range(1, count + 1)]
    return sorted((run for run in wanted if run not in done), key=lambda run: run[1])


def save_protocol(path: Path, protocol: Protocol) -> None:
    """Write the protocol beside the results it belongs to."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(asdict(protocol), indent=1)
    path.with_suffix(".protocol.json").write_text(text + "\n", encoding="utf-8")


def load_protocol(path: Path) -> Protocol:
    """Return the protocol of a file of results."""
    return Protocol(**json.loads(path.with_suffix(".protocol.json").read_text(encoding="utf-8")))
