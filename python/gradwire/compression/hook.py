"""DDP's communication hook.

A bucket's gradients are divided into runs of neighbours that travel alike, which go out at once,
without copies; small tensors are packed into one operation. What a codec loses is kept for the next
step where error feedback is on. The bucket's future is completed by a thread that waits for its
operations and does not take the cores from the backward pass meanwhile.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.futures import Future

from gradwire.compression.configuration import CompressionConfig, as_config
from gradwire.compression.controller import Controller
from gradwire.compression.error_feedback import ErrorFeedback
from gradwire.compression.low_rank import PowerSgd
from gradwire.compression.operations import check_float32, gradwire_group
from gradwire.compression.sparsification import Sparsifier
from gradwire.futures import POOL
from gradwire.lineage import CONTEXT, OperationFuture

NONE = "none"


class CompressionState:
    """What a hook keeps from step to step.

    Parameters
    ----------
    config
        How gradients travel.
    group
        The process group, gradwire's; the default group if not given.
    """

    def __init__(self, config: CompressionConfig, group: Any = None) -> None:
        self.config = config
        self.group = group
        self.step = 0
        self.feedback = ErrorFeedback(config.residual_decay)
        self.controller: Controller | None = None
        self._special: Any = None
        self._lock = threading.Lock()
        self._open_buckets = 0
        self._done = threading.Condition(self._lock)
        self._loaded: dict[str, Any] | None = None

    # ------------------------------------------------------------- what the user may ask

    def decisions(self) -> str:
        """Return a table of what was chosen for which tensor, and why."""
        if self.controller is None:
            return f"all gradients travel as {self.config.codec}, small and 1-D ones as they are"
        return self.controller.table()

    def state_dict(self, module: nn.Module) -> dict[str, Any]:
        """Return this rank's state by the names of the module's parameters.

        Call it between steps; every rank saves its own.
        """
        self._wait_for_buckets()
        self._end_step()
        state = {"step": self.step, **self.feedback.state_dict(module)}
        if self.controller is not None:
            state["controller"] = self.controller.state_dict()
        return state

    def load_state_dict(
        self, states: dict[str, Any] | Sequence[dict[str, Any]], module: nn.Module
    ) -> None:
        """Take over a saved state: this rank's own, or those of all old ranks, in their order.

        All old ranks' states are needed where the number of ranks has changed.
        """
        if isinstance(states, dict):
            states, rank, size = [states], 0, 1
        else:
            rank, size = dist.get_rank(self.group), dist.get_world_size(self.group)
        self.step = int(states[0]["step"])
        self.feedback.load_state_dict(states, rank, size)
        self.feedback.adopt(module.named_parameters())
        self._loaded = states[0].get("controller")

    # ------------------------------------------------------------- the hook's side

    def reduce(self, bucket: dist.GradBucket) -> Future[Tensor]:
        """Start to average a bucket over all ranks."""
        if bucket.index() == 0:
            self._begin_step()
        group = gradwire_group(self.group)
        buffer = bucket.buffer()
        if self.config.codec not in (NONE, "adaptive"):
            check_float32("DDP hook", self.config.codec, buffer)
        if self.config.codec == "adaptive" and self.controller is None:
            self.controller = Controller(self.config, group)
            if self._loaded is not None:
                self.controller.load_state_dict(self._loaded)
        job = BucketJob(self, group, bucket)
        with self._lock:
            self._open_buckets += 1
        future = OperationFuture(None, [] if buffer.is_cpu else [buffer.device])
        path = f"bucket {bucket.index()}"
        POOL.run(lambda: self._finish(job, future, path))
        return future

    def _finish(self, job: BucketJob, future: OperationFuture, path: str) -> None:
        outer, CONTEXT.path = CONTEXT.path, path
        failure: BaseException | None = None
        try:
            job.finish()
        except Exception as error:  # noqa: BLE001 - DDP raises it where it waits
            failure = error
        finally:
            CONTEXT.path = outer
        with self._lock:
            self._open_buckets -= 1
            self._done.notify_all()
        if failure is None:
            future.set_result(job.buffer)
        else:
            future.fail(failure)

    def _begin_step(self) -> None:
        self._wait_for_buckets()
        self._end_step()
        self.step += 1

    def _end_step(self) -> None:
        config = self.config
        scale = config.loss_scale() if config.loss_scale is not None else None
        self.feedback.end_step(scale)
        if config.residual_reset and self.step % config.residual_reset == 0:
            self.feedback.clear()
        if self.controller is not None:
            self.controller.end_step()

    def _wait_for_buckets(self) -> None:
        with self._lock:
            while self._open_buckets:
                self._done.wait()

    def special(self) -> Any:
        """Return what sparsifies or does `power_sgd`; `None` for other codecs."""
        if self._special is None:
            if self.config.codec in ("top_k", "random_k", "block_sparse"):
                self._special = Sparsifier(self.config)
            elif self.config.codec == "power_sgd":
                self._special = PowerSgd(self.config)
        return self._special

    def __getstate__(self) -> dict[str, Any]:
        # Residuals go through `state_dict`, by name.
        return {"config": self.config, "step": self.step}

    def __setstate__(self, kept: dict[str, Any]) -> None:
        self.__init__(kept["config"])  # type: ignore[misc]
        self.step = kept["step"]


class BucketJob:
    """One bucket on its way."""

    def __init__(self, state: CompressionState, group: Any, bucket: dist.GradBucket) -> None:
        self.buffer = bucket.buffer()
        self._state = state
        self._group = group
        self._index = bucket.index()
        self._parameters = bucket.parameters()
        self._gradients = [gradient.view(-1) for gradient in bucket.gradients()]
        self._packed: list[Tensor] = []
        self._works: list[Any] = []
        self._finishers: list[Callable[[], None]] = []
        config = state.config
        if state.controller is not None:
            state.controller.before(self._index, self._parameters, self._gradients)
        codecs = [self._codec(parameter) for parameter in self._parameters]
        if config.feeds_back:
            for parameter, gradient, codec in zip(
                self._parameters, self._gradients, codecs, strict=True
            ):
                if codec != NONE:
                    state.feedback.add(parameter, gradient)
        for codec, members in itertools.groupby(range(len(codecs)), key=codecs.__getitem__):
            self._start(codec, list(members))
        self._start_packed()

    def _codec(self, parameter: Tensor) -> str:
        """Return how a parameter's gradient travels."""
        state = self._state
        if self.buffer.dtype != torch.float32 or state.step <= state.config.first_step:
            return NONE
        if parameter.dim() < 2 or parameter.numel() < state.config.smallest:
            return NONE
        if state.controller is not None:
            return state.controller.codec(parameter)
        return state.config.codec

    def _start(self, codec: str, members: list[int]) -> None:
        gradients = [self._gradients[index] for index in members]
        if codec == NONE:
            self._start_raw(gradients)
            return
        special = self._state.special()
        if special is not None:
            parameters = [self._parameters[index] for index in members]
            self._finish_with(members, special.start(self._group, parameters, gradients))
            return
        run = _run(self.buffer, gradients)
        error = torch.empty_like(run, device="cpu") if self._state.config.feeds_back else None
        work = self._group._reduce_with_codec(run, "avg", codec, error)
        self._works.append(work)
        if error is not None:
            lengths = [gradient.numel() for gradient in gradients]
            self._finish_with(members, lambda: list(error.split(lengths)))

    def _start_raw(self, gradients: list[Tensor]) -> None:
        if sum(gradient.nbytes for gradient in gradients) < _PACKED_BYTES:
            self._packed += gradients
            return
        run = _run(self.buffer, gradients)
        self._works.append(
            self._group._reduce_in_place("all_reduce", run, dist.ReduceOp.AVG, 0, None)
        )

    def _start_packed(self) -> None:
        if not self._packed:
            return
        packed = torch.cat(self._packed)
        work = self._group._reduce_in_place("all_reduce", packed, dist.ReduceOp.AVG, 0, None)
        self._works.append(work)

        def unpack() -> None:
            pieces = packed.split([gradient.numel() for gradient in self._packed])
            for gradient, piece in zip(self._packed, pieces, strict=True):
                gradient.copy_(piece)

        self._finishers.append(unpack)

    def _finish_with(self, members: list[int], finisher: Callable[[], list[Tensor]]) -> None:
        """Note what ends an operation and says what it lost of each member."""

        def finish() -> None:
            lost = finisher()
            if not self._state.config.feeds_back:
                return
            for index, residual in zip(members, lost, strict=True):
                self._state.feedback.keep(self._parameters[index], residual.cpu())
                finite = bool(torch.isfinite(self._gradients[index]).all())
                self._state.feedback.note(finite)

        self._finishers.append(finish)

    def finish(self) -> None:
        """Wait for the operations, and put everything where it belongs."""
        for work in self._works:
            work._outcome()
        with torch.no_grad():
            for finisher in self._finishers:
                finisher()
        controller = self._state.controller
        if controller is not None:
            controller.after(self._index, self._parameters, self._gradients, time.perf_counter())


_PACKED_BYTES = 64 << 10
"""Runs of uncompressed gradients below this are packed into one operation."""


def _run(buffer: Tensor, gradients: list[Tensor]) -> Tensor:
    """Return neighbouring gradients of a bucket as one tensor, padding between them included."""
    element = buffer.element_size()
    start = (gradients[0].data_ptr() - buffer.data_ptr()) // element
    last = gradients[-1]
    end = (last.data_ptr() - buffer.data_ptr()) // element + last.numel()
    return buffer[start:end]


def _hook(state: CompressionState, bucket: dist.GradBucket) -> Future[Tensor]:
    return state.reduce(bucket)


# DDP compares these as objects, and here annotations are strings.
_hook.__annotations__ = {"bucket": dist.GradBucket, "return": Future[Tensor]}


def ddp_hook(
    config: str | CompressionConfig = "adaptive", *, group: Any = None, **changes: Any
) -> tuple[CompressionState, Callable[[CompressionState, dist.GradBucket], Future[Tensor]]]:
    """Return state and hook for `ddp.register_comm_hook(*ddp_hook(...))`.

    Parameters
    ----------
    config
        The name of a codec, `adaptive`, or a `CompressionConfig`.
    group
        DDP's process group; the default group if not given.
    changes
        Fields of the `CompressionConfig` that differ from `config`'s.

    Raises
    ------
    ValueError
        For an unknown codec or a value out of range, saying what there is.

    Examples
    --------
    >>> ddp.register_comm_hook(*gradwire.ddp_hook("adaptive"))
    >>> ddp.register_comm_hook(*gradwire.ddp_hook("top_k", density=0.01))
    """
    return CompressionState(as_config(config, **changes), group), _hook
