"""What the computation is doing, for the trace."""

from __future__ import annotations

from gradwire import tracing


class Timeline:
    """Divides the training thread's time into spans of forward, backward and optimizer.

    Nothing is recorded, and next to nothing done, while there is no trace.
    """

    def __init__(self) -> None:
        self._since = 0
        self._now: tuple[str, str] | None = None
        self._step_since = 0
        self._steps = 0

    def step_begins(self) -> None:
        """Record the step that is over."""
        self._steps += 1
        if not tracing.active():
            self._step_since = 0
            return
        self._end()
        self._now = None
        now = tracing.now()
        if self._step_since:
            tracing.record(f"step {self._steps - 1}", "step", self._step_since, now)
        self._step_since = now

    def enter(self, category: str, name: str) -> None:
        """Record that something of this kind begins, which ends what was before."""
        if not tracing.active():
            return
        self._end()
        self._now = (category, name)

    def leave(self, category: str, name: str) -> None:
        """Record that something of this kind, begun where the last span ended, is over."""
        if not tracing.active():
            return
        self._now = (category, name)
        self._end()
        self._now = None

    def _end(self) -> None:
        now = tracing.now()
        if self._now is not None and self._since:
            category, name = self._now
            tracing.record(name, category, self._since, now)
        self._since = now
