"""What makes the controller plan before its time, or stop compressing at once.

What a rank times, and what it has kept back, is its own: before anything follows from that, all
ranks learn of it by a vote. Reduced gradients are the same on all of them anyway.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections import deque
from typing import Any

import torch
import torch.distributed as dist

from gradwire.compression.bucket import in_channel

CHANGED = 2.0
"""A wire so many times faster or slower than after the last plan is another one."""

COMPARED_STEPS = 3
"""So many steps tell how fast it is."""

JUMP = 10.0
"""A gradient so many times larger than usual is an alarm."""

KEPT_BACK = 1.0
"""Residuals so many times as large as a usual gradient are an alarm."""

_numbers = itertools.count()


class LinkWatch:
    """Notices that the wire is not what it was after the last plan."""

    def __init__(self) -> None:
        self._usual: list[float] = []
        self._recent: deque[float] = deque(maxlen=COMPARED_STEPS)

    def restart(self) -> None:
        """Take the next steps for usual ones."""
        self._usual.clear()
        self._recent.clear()

    def note(self, seconds_per_byte: float) -> None:
        """Note how fast the wire was in a step."""
        if len(self._usual) < COMPARED_STEPS:
            self._usual.append(seconds_per_byte)
        else:
            self._recent.append(seconds_per_byte)

    @property
    def has_changed(self) -> bool:
        """Whether it is much faster or slower now."""
        if len(self._recent) < COMPARED_STEPS:
            return False
        ratio = statistics.median(self._recent) / statistics.median(self._usual)
        return not 1 / CHANGED <= ratio <= CHANGED


class GradientWatch:
    """Notices that gradients, or what is kept back of them, are not as large as usual.

    Attributes
    ----------
    usual_norm
        A mean over the last steps of the reduced gradient's norm, 0 before the first.
    """

    def __init__(self) -> None:
        self.usual_norm = 0.0

    def alarm(self, norm: float) -> str | None:
        """Take a step's norm into account; if it is an alarm, say why."""
        usual = self.usual_norm
        if math.isfinite(norm):
            self.usual_norm += (0.1 if usual else 1.0) * (norm - usual)
        if math.isfinite(norm) and not (usual > 0 and norm > JUMP * usual):
            return None
        return f"gradient norm {norm:.3g}, usually {usual:.3g}"

    def is_too_much(self, residual_norm: float) -> bool:
        """Return whether more is kept back than a usual gradient has."""
        return self.usual_norm > 0 and residual_norm > KEPT_BACK * self.usual_norm


class Vote:
    """A question to all ranks, answered yes if one of them says so.

    Parameters
    ----------
    group
        The process group, gradwire's.
    """

    def __init__(self, group: Any) -> None:
        self._group = group
        self._channel = f"vote {next(_numbers)}"
        self._answers: torch.Tensor | None = None
        self._work: Any = None

    def ask(self, *own: bool) -> None:
        """Start to ask, with this rank's own answers; all ranks do."""
        self._answers = torch.tensor([float(one) for one in own])
        with in_channel(self._channel):
            self._work = self._group._reduce_in_place(
                "all_reduce", self._answers, dist.ReduceOp.MAX, 0, None
            )

    def outcome(self) -> list[bool]:
        """Return the answers to what was asked last; none if nothing was."""
        if self._work is None:
            return []
        self._work.wait()
        self._work = None
        assert self._answers is not None
        return [answer > 0 for answer in self._answers.tolist()]
