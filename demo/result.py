"""What the demo measured, and how it is made from the ranks' events and kept as JSON."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from timeline import Span, Timeline

Event = Mapping[str, Any]


class IncompleteRunError(Exception):
    """The events of a run lack something that its result is made from."""


@dataclass(frozen=True)
class Curve:
    """Losses in nats per byte, against steps and against seconds spent in training steps."""

    step: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    loss: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Run:
    """One training run.

    Attributes
    ----------
    name
        The backend's name, numbered when it ran more than once.
    step_ms, no_communication_step_ms
        Median milliseconds of a training step, and of the same step without communication.
    exposed_share
        ``(step_ms - no_communication_step_ms) / step_ms``.
    tokens_per_s
        Tokens of all ranks per second, at the median step.
    final_loss
        Held-out loss after the last step, nats per byte.
    sent_mb_per_step
        Megabytes (10^6) a host sent per step, framing included; None where hosts share an
        interface.
    parameters, steps, wall_s
        Parameters of the model, training steps, seconds from start to end of the run.
    training, held_out
        Loss on the training batches (mean of all ranks), and on the held-out text.
    timeline
        One step of rank 0, where the backend records traces.
    """

    name: str
    step_ms: float
    no_communication_step_ms: float
    exposed_share: float
    tokens_per_s: float
    final_loss: float
    sent_mb_per_step: float | None
    parameters: int
    steps: int
    wall_s: float
    training: Curve
    held_out: Curve
    timeline: Timeline | None = None


@dataclass(frozen=True)
class Result:
    """The whole demo: what ran where, and one :class:`Run` for each backend.

    Attributes
    ----------
    link_rate
        Rate of each host's link as given (``1gbit``), or ``unshaped`` over loopback.
    network
        ``lab`` or ``loopback``.
    network_note
        Why loopback, and what it can't show; empty in the lab.
    no_communication_step_ms
        Median over the runs, milliseconds.
    hosts
        Number of hosts, one rank on each.
    settings, machine
        What to print about the training and the machine, by label.
    commands
        The commands that were run, the one that started the demo first.
    """

    link_rate: str
    network: str
    network_note: str
    no_communication_step_ms: float
    hosts: int
    settings: dict[str, str]
    machine: dict[str, str]
    commands: list[str]
    runs: list[Run]


def summarize(
    name: str, ranks: Sequence[Sequence[Event]], tokens_per_step: int, *, own_interfaces: bool
) -> Run:
    """Make a run's result out of its ranks' events.

    Parameters
    ----------
    name
        Name of the run.
    ranks
        Each rank's events, rank 0 first.
    tokens_per_step
        Tokens of all ranks in one step.
    own_interfaces
        Whether each rank's traffic can be told from the others'.

    Raises
    ------
    IncompleteRunError
        A kind of event is missing.
    """
    everything = [event for rank in ranks for event in rank]
    timed = [event for event in _of(everything, "step") if event["timed"]]
    bare = _of(everything, "step_without_communication")
    if not timed or not bare or not all(_of(rank, "finished") for rank in ranks):
        raise IncompleteRunError(f"{name}: a rank ended before it had measured everything")
    step = statistics.median(event["seconds"] for event in timed)
    without = statistics.median(event["seconds"] for event in bare)
    training = _training_curve(ranks)
    held_out = _held_out_curve(ranks, training)
    return Run(
        name=name,
        step_ms=step * 1e3,
        no_communication_step_ms=without * 1e3,
        exposed_share=(step - without) / step,
        tokens_per_s=tokens_per_step / step,
        final_loss=held_out.loss[-1],
        sent_mb_per_step=_sent_mb_per_step(everything) if own_interfaces else None,
        parameters=next(event["parameters"] for event in _of(ranks[0], "started")),
        steps=training.step[-1],
        wall_s=max(event["at"] for event in everything) - min(event["at"] for event in everything),
        training=training,
        held_out=held_out,
    )


def to_json(result: Result) -> str:
    """Return `result` as indented JSON; the keys are the attributes' names."""
    return json.dumps(asdict(result), indent=1, allow_nan=False) + "\n"


def from_json(text: str) -> Result:
    """Read back what :func:`to_json` wrote."""
    fields = json.loads(text)
    runs = [
        Run(
            **{
                **run,
                "training": Curve(**run["training"]),
                "held_out": Curve(**run["held_out"]),
                "timeline": _timeline(run.get("timeline")),
            }
        )
        for run in fields.pop("runs")
    ]
    return Result(**fields, runs=runs)


def _timeline(fields: Mapping[str, Any] | None) -> Timeline | None:
    if fields is None:
        return None
    return Timeline(fields["milliseconds"], [Span(**span) for span in fields["spans"]])


def write_whole(path: Path, text: str) -> None:
    """Write `text` to `path` so that the file is either whole or not there."""
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def _of(events: Iterable[Event], kind: str) -> list[Event]:
    return [event for event in events if event["event"] == kind]


def _training_curve(ranks: Sequence[Sequence[Event]]) -> Curve:
    steps = [_of(rank, "step") for rank in ranks]
    curve, seconds = Curve(), 0.0
    for same_step in zip(*steps, strict=True):
        seconds += same_step[0]["seconds"]
        curve.step.append(same_step[0]["step"])
        curve.seconds.append(seconds)
        curve.loss.append(statistics.fmean(event["loss"] for event in same_step))
    return curve


def _held_out_curve(ranks: Sequence[Sequence[Event]], training: Curve) -> Curve:
    seconds_at = {0: 0.0, **dict(zip(training.step, training.seconds, strict=True))}
    curve = Curve()
    for same_step in zip(*(_of(rank, "held_out") for rank in ranks), strict=True):
        curve.step.append(same_step[0]["step"])
        curve.seconds.append(seconds_at[same_step[0]["step"]])
        curve.loss.append(statistics.fmean(event["loss"] for event in same_step))
    return curve


def _sent_mb_per_step(events: Sequence[Event]) -> float:
    per_step: list[float] = [
        block["sent_bytes"] / block["steps"] / 1e6 for block in _of(events, "block")
    ]
    return statistics.median(per_step)
