"""Threads that wait for operations on behalf of futures."""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable

_IDLE_LIMIT = 64
_IDLE_SECONDS = 30.0

Job = Callable[[], None]


class _Worker:
    """A daemon thread that runs one job at a time and waits for the next."""

    def __init__(self, pool: WaiterPool, job: Job) -> None:
        self._pool = pool
        self._job: Job | None = job
        self._wake = threading.Semaphore(0)
        threading.Thread(target=self._run, name="gradwire-waiter", daemon=True).start()

    def give(self, job: Job) -> None:
        self._job = job
        self._wake.release()

    def _run(self) -> None:
        while self._job is not None:
            job, self._job = self._job, None
            job()
            del job  # Else an idle thread would keep the tensors of its last operation.
            if not self._pool.park(self):
                return
            if not self._wake.acquire(timeout=_IDLE_SECONDS) and not self._pool.unpark(self):
                self._wake.acquire()  # A job was handed over just as the wait ended.


class WaiterPool:
    """Daemon threads, as many as there are jobs at once, kept for a while when idle.

    A future's callbacks may wait for other operations (PyTorch's PowerSGD hook does), so neither
    the engine's threads nor a fixed number of shared ones can run them: every pending future has
    a thread of its own.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: collections.deque[_Worker] = collections.deque()

    def run(self, job: Job) -> None:
        """Run `job`, which must not raise, on a thread that nothing else uses meanwhile."""
        with self._lock:
            worker = self._idle.pop() if self._idle else None
        if worker is None:
            _Worker(self, job)
        else:
            worker.give(job)

    def park(self, worker: _Worker) -> bool:
        """Note that `worker` is idle; false tells it to end, since enough others are idle."""
        with self._lock:
            if len(self._idle) >= _IDLE_LIMIT:
                return False
            self._idle.append(worker)
            return True

    def unpark(self, worker: _Worker) -> bool:
        """Take an idle `worker` out of the pool; false if a job was given to it already."""
        with self._lock:
            try:
                self._idle.remove(worker)
            except ValueError:
                return False
            return True


POOL = WaiterPool()
"""The process's waiters."""


class OrderedJobs:
    """Runs jobs one after the other, in the order given, on a borrowed thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._drained = threading.Condition(self._lock)
        self._jobs: collections.deque[Job] = collections.deque()
        self._running = False

    @property
    def busy(self) -> bool:
        """Whether a job is waiting or running."""
        return self._running

    def put(self, job: Job) -> None:
        """Append `job`, which must not raise."""
        with self._lock:
            self._jobs.append(job)
            if self._running:
                return
            self._running = True
        POOL.run(self._run)

    def drain(self) -> None:
        """Wait until every job given so far has run."""
        with self._lock:
            while self._running:
                self._drained.wait()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._jobs:
                    self._running = False
                    self._drained.notify_all()
                    return
                job = self._jobs.popleft()
            job()
