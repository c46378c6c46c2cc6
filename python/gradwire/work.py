"""Handles of operations in progress, as `torch.distributed` wants them."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import Work
from torch.futures import Future

from gradwire._native import Handle
from gradwire.futures import POOL, OrderedJobs
from gradwire.lineage import Channel, OperationFuture, path_of
from gradwire.staging import DeviceArguments, HostArguments

_ZERO = timedelta(0)


def _seconds(timeout: timedelta | None) -> float | None:
    """Return a wait's limit in seconds; PyTorch says "none" by zero and "unset" by less."""
    if timeout is None or timeout <= _ZERO:
        return None
    return timeout.total_seconds()


class AsyncWork(Work):
    """A work whose future is completed by a thread that waits for it."""

    _outputs: list[Any]
    _future: OperationFuture | None = None
    _lineage: tuple[Channel, int] | None = None

    def _devices(self) -> list[torch.device]:
        return []

    def _outcome(self) -> list[Any]:
        """Wait for the end; return the future's value or raise."""
        raise NotImplementedError

    def get_future(self) -> Future[Any]:
        """Return a future of the operation's output tensors.

        Its callbacks run on a thread of their own and may wait for other operations.
        """
        if self._future is None:
            path = None if self._lineage is None else path_of(*self._lineage)
            self._future = OperationFuture(path, self._devices())
            if self.is_completed():
                self._complete(self._future)
            else:
                future = self._future
                POOL.run(lambda: self._complete(future))
        return self._future

    def _complete(self, future: OperationFuture) -> None:
        try:
            value = self._outcome()
        except Exception as error:  # noqa: BLE001 - whoever reads the future gets it
            future.fail(error)
        else:
            future.set_result(value)

    def is_success(self) -> bool:
        """Return whether the operation is over and went well."""
        return self.is_completed() and self.exception() is None

    def synchronize(self) -> None:
        """Wait, like `wait()`."""
        self.wait()

    def block_current_stream(self) -> None:
        """Make the current stream wait; the calling thread waits as well."""
        self.wait()

    def exception(self) -> BaseException | None:
        """Return what made the operation fail, `None` as long as nothing did."""
        raise NotImplementedError


class OperationWork(AsyncWork):
    """One operation on memory that the engine reads and writes directly.

    Parameters
    ----------
    handle
        The engine's handle.
    outputs
        The tensors that hold the result.
    lineage
        The operation's channel and number, `None` for point-to-point operations.
    kept
        Whatever else must stay alive until the operation is over.
    """

    _handle: Handle | None = None

    def __init__(
        self,
        handle: Handle,
        outputs: list[Any],
        lineage: tuple[Channel, int] | None,
        kept: Any = None,
    ) -> None:
        Work.__init__(self)
        self._handle = handle
        self._outputs = outputs
        self._lineage = lineage
        self._kept = kept

    def __del__(self) -> None:
        handle = self._handle
        if handle is None or handle.is_completed() or sys.is_finalizing():
            return
        _keep_until_done(handle, (self._outputs, self._kept))

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for the operation.

        Parameters
        ----------
        timeout
            How long to wait at most; the operation's own deadline holds as well.

        Raises
        ------
        GradwireError
            If the operation failed or the time is over.
        """
        assert self._handle is not None
        self._handle.wait(None if timeout is None else _seconds(timeout))
        return True

    def is_completed(self) -> bool:
        """Return whether the operation is over, well or not."""
        return self._handle is not None and self._handle.is_completed()

    def exception(self) -> BaseException | None:
        """Return what made the operation fail, `None` as long as nothing did."""
        return None if self._handle is None else self._handle.exception()

    def seconds_over(self) -> float:
        """Return for how long the operation has been over, 0 while it is in flight."""
        return (self._handle is not None and self._handle.seconds_over()) or 0.0

    def result(self) -> list[Any]:
        """Return the output tensors, once the operation is over."""
        self.wait()
        return self._outputs

    def _outcome(self) -> list[Any]:
        assert self._handle is not None
        self._handle.wait(drive=False)
        self.wait()
        return self._outputs

    def source_rank(self) -> int:
        """Return the group rank whose message a receive matched, -1 before that."""
        source = None if self._handle is None else self._handle.source()
        return -1 if source is None else source

    _source_rank = source_rank


def _keep_until_done(handle: Handle, kept: object) -> None:
    """Keep memory that the engine still uses although nobody holds the work any more."""

    def wait() -> None:
        with contextlib.suppress(Exception):  # Nobody is left to be told.
            handle.wait(drive=False)
        nonlocal kept
        kept = None

    POOL.run(wait)


class StagedWork(OperationWork):
    """An operation on contiguous copies, whose results are copied back when it is over."""

    def __init__(
        self,
        handle: Handle,
        outputs: list[Any],
        lineage: tuple[Channel, int] | None,
        arguments: HostArguments,
    ) -> None:
        OperationWork.__init__(self, handle, outputs, lineage, arguments)
        self._lock = threading.Lock()
        self._copied = False

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for the operation and for the copies; see `OperationWork.wait`."""
        OperationWork.wait(self, timeout)
        with self._lock:
            if not self._copied:
                self._kept.copy_back()
                self._copied = True
        return True

    def is_completed(self) -> bool:
        """Return whether the operation is over and its results are in place."""
        if not OperationWork.is_completed(self):
            return False
        if not self._copied and OperationWork.exception(self) is None:
            self.wait()
        return True


class DeviceWork(AsyncWork):
    """An operation on device memory, staged through pinned host memory.

    The engine is handed the operation once the copy to the host is done, on a thread that keeps
    the order of the group's operations.

    Parameters
    ----------
    submit
        Hands the operation to the engine.
    submissions
        The group's operations waiting for their copies.
    outputs
        The device tensors that hold the result.
    lineage
        The operation's channel and number, `None` for point-to-point operations.
    arguments
        The staged memory.
    """

    def __init__(
        self,
        submit: Callable[[], Handle],
        submissions: OrderedJobs,
        outputs: list[Any],
        lineage: tuple[Channel, int] | None,
        arguments: DeviceArguments,
    ) -> None:
        Work.__init__(self)
        self._lineage = lineage
        self._submit = submit
        self._outputs = outputs
        self._arguments = arguments
        self._submitted = threading.Event()
        self._lock = threading.Lock()
        self._handle: Handle | None = None
        self._error: BaseException | None = None
        self._copied: torch.cuda.Event | None = None
        submissions.put(self._submit_when_ready)

    def _submit_when_ready(self) -> None:
        try:
            self._arguments.ready.synchronize()
            self._handle = self._submit()
        except Exception as error:  # noqa: BLE001 - raised where the work is waited for
            self._error = error
        self._submitted.set()

    def _finish(self, timeout: timedelta | None) -> torch.cuda.Event:
        """Wait for the engine and copy back once; return the event after the copies."""
        if not self._submitted.wait(_seconds(timeout)):
            raise TimeoutError("the copy from the device did not end in time")
        if self._error is not None:
            raise self._error
        assert self._handle is not None
        self._handle.wait(_seconds(timeout))
        with self._lock:
            if self._copied is None:
                self._copied = self._arguments.copy_back()
            return self._copied

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for the operation; the current stream then waits for the copy to the device."""
        copied = self._finish(timeout)
        torch.cuda.current_stream(self._arguments.device).wait_event(copied)
        return True

    def is_completed(self) -> bool:
        """Return whether the operation is over, well or not."""
        if not self._submitted.is_set():
            return False
        return self._handle is None or self._handle.is_completed()

    def exception(self) -> BaseException | None:
        """Return what made the operation fail, `None` as long as nothing did."""
        if self._error is not None or self._handle is None:
            return self._error
        return self._handle.exception()

    def result(self) -> list[Any]:
        """Return the output tensors, once the operation is over."""
        self.wait()
        return self._outputs

    def seconds_over(self) -> float:
        """Return for how long the operation has been over, 0 while it is in flight."""
        return (self._handle is not None and self._handle.seconds_over()) or 0.0

    def source_rank(self) -> int:
        """Return the group rank whose message a receive matched, -1 before that."""
        source = None if self._handle is None else self._handle.source()
        return -1 if source is None else source

    _source_rank = source_rank

    def _devices(self) -> list[torch.device]:
        return [self._arguments.device]

    def _outcome(self) -> list[Any]:
        # Also the calling thread's stream has to wait: what it queues next reads the results.
        self.wait()
        return self._outputs

    def _complete(self, future: OperationFuture) -> None:
        # The future notes where the current stream stands; readers wait for that point.
        with torch.cuda.stream(self._arguments.stream):
            super()._complete(future)


class GroupedWork(AsyncWork):
    """Several operations that are waited for together.

    Parameters
    ----------
    works
        The operations, in the order in which they were started.
    outputs
        The tensors that hold the results.
    """

    def __init__(self, works: Sequence[AsyncWork], outputs: list[Any]) -> None:
        Work.__init__(self)
        self._lineage = works[0]._lineage if works else None
        self._works = works
        self._outputs = outputs

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for all operations; raises what the first failed one raises."""
        for work in self._works:
            work.wait(_ZERO if timeout is None else timeout)
        return True

    def is_completed(self) -> bool:
        """Return whether all operations are over."""
        return all(work.is_completed() for work in self._works)

    def exception(self) -> BaseException | None:
        """Return the first operation's error, `None` if there is none."""
        for work in self._works:
            error: BaseException | None = work.exception()
            if error is not None:
                return error
        return None

    def result(self) -> list[Any]:
        """Return the output tensors, once all operations are over."""
        self.wait()
        return self._outputs

    def _devices(self) -> list[torch.device]:
        devices = {tensor.device for tensor in self._outputs if tensor.device.type == "cuda"}
        return sorted(devices, key=str)

    def _outcome(self) -> list[Any]:
        for work in self._works:
            work._outcome()
        return self._outputs
