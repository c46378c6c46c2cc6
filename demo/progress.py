"""Progress of one run: a live line on a terminal, a line now and then in a pipe."""

from __future__ import annotations

import shutil
import statistics
import time
from collections import deque
from typing import TextIO

from result import Event

BAR_WIDTH = 20
LINES_IN_A_PIPE = 5
RECENT_STEPS = 8


class Progress:
    """Shows rank 0's events.

    Parameters
    ----------
    name
        Name of the run.
    steps
        Steps it will train for.
    stream
        Where to write; decides by itself whether that is a terminal.
    """

    def __init__(self, name: str, steps: int, stream: TextIO) -> None:
        self._name, self._steps, self._stream = name, steps, stream
        self._live = stream.isatty()
        self._began = time.monotonic()
        self._done = 0
        self._shown = 0
        self._recent: deque[tuple[float, float]] = deque(maxlen=RECENT_STEPS)
        self._bare: list[float] = []
        self._phase = "starting"

    def take(self, event: Event) -> None:
        """Take note of an event, and in a pipe print a line where one is due."""
        match event["event"]:
            case "step":
                self._done = event["step"]
                self._recent.append((event["seconds"], event["loss"]))
                self._phase = "training"
            case "step_without_communication":
                self._bare.append(event["seconds"])
                self._phase = "measuring"
        due = self._done * LINES_IN_A_PIPE // self._steps
        if not self._live and due > self._shown:
            self._shown = due
            print(self.line(), file=self._stream, flush=True)

    def refresh(self) -> None:
        """Redraw the live line; does nothing in a pipe."""
        if self._live:
            columns = shutil.get_terminal_size().columns
            self._stream.write(f"\r\x1b[2K{self.line()[: columns - 1]}")
            self._stream.flush()

    def finish(self) -> None:
        """Leave the live line as it is and go to the next."""
        if self._live:
            self._stream.write("\n")
            self._stream.flush()

    def line(self) -> str:
        """Return the line as it stands now."""
        filled = BAR_WIDTH * self._done // self._steps
        bar = "█" * filled + "░" * (BAR_WIDTH - filled)
        elapsed = int(time.monotonic() - self._began)
        line = f"{self._name:<10} {bar} step {self._done}/{self._steps}"
        if self._recent:
            seconds = statistics.median(seconds for seconds, _ in self._recent)
            loss = statistics.fmean(loss for _, loss in self._recent)
            line += f"  loss {loss:.3f}  {seconds * 1e3:.0f} ms/step"
        if self._bare:
            line += f" ({statistics.median(self._bare) * 1e3:.0f} without communication)"
        return f"{line}  {elapsed // 60}:{elapsed % 60:02d}  {self._phase}"
