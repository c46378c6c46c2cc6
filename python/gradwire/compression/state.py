"""What compression keeps from step to step, whoever hands it the gradients."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed as dist
from torch import nn

from gradwire.compression.arrangement import Arrangement
from gradwire.compression.bucket import BucketContent, BucketJob
from gradwire.compression.checkpoint import all_states, of_rank
from gradwire.compression.configuration import CompressionConfig
from gradwire.compression.controller import Controller
from gradwire.compression.error_feedback import ErrorFeedback
from gradwire.compression.low_rank import PowerSgd
from gradwire.compression.operations import check_float32, gradwire_group
from gradwire.compression.sparsification import Sparsifier


class CompressionState:
    """How gradients travel, and what is kept of them from step to step.

    Parameters
    ----------
    config
        How gradients travel.
    group
        The process group, gradwire's; the default group if not given.
    synchronize
        Ends what is under way, where nobody does so until the buckets are needed.
    """

    def __init__(
        self,
        config: CompressionConfig,
        group: Any = None,
        synchronize: Callable[[], None] | None = None,
    ) -> None:
        self.config = config
        self.group = group
        self._synchronize = synchronize
        self.step = 0
        adapts = config.codec == "adaptive"
        self.feedback = ErrorFeedback(config.residual_decay, measures=adapts)
        self.controller: Controller | None = None
        self.arrangement = Arrangement()
        self._special: Any = None
        self._lock = threading.Lock()
        self._open_buckets = 0
        self._done = threading.Condition(self._lock)
        self._module: nn.Module | None = None

    # ------------------------------------------------------------- what the user may ask

    def decisions(self) -> str:
        """Return a table of what was chosen for which tensor, and why."""
        if self.config.codec == "none":
            return "all gradients travel as they are"
        if self.controller is None:
            return f"all gradients travel as {self.config.codec}, small and 1-D ones as they are"
        return self.controller.table()

    def state_dict(self, module: nn.Module) -> dict[str, Any]:
        """Return this rank's state by the names of the module's parameters.

        Call it between steps; every rank saves its own.
        """
        self._settle()
        parameters = list(module.named_parameters())
        state: dict[str, Any] = {
            "step": self.step,
            **of_rank(dist.get_rank(self.group), dist.get_world_size(self.group)),
            **self.feedback.state_dict(parameters),
            "buckets": self.arrangement.state_dict(parameters),
        }
        for part, keeper in (("special", self._special), ("controller", self.controller)):
            if keeper is not None:
                state[part] = keeper.state_dict(parameters)
        return state

    def load_state_dict(
        self, states: dict[str, Any] | Sequence[dict[str, Any]], module: nn.Module
    ) -> None:
        """Take over a saved state: this rank's own, or those of all old ranks, in their order.

        A run goes on from it bit for bit, but for what `adaptive` measures of time. Where the
        number of ranks has changed, the states of all old ranks are needed. Residuals are carried
        over then so that their sum is what it was; a plan of `adaptive`, which was for that many
        ranks, is dropped, and gradients travel as they are until the next one.

        Raises
        ------
        ValueError
            If these are not the states that are needed, or are of another model.
        """
        self._settle()
        rank, size = dist.get_rank(self.group), dist.get_world_size(self.group)
        saved = all_states(states, rank, size)
        resized = len(saved) != size
        own = saved[0 if resized else rank]
        parameters = list(module.named_parameters())
        self.feedback.load_state_dict(saved, rank, size, parameters)
        self.arrangement.load_state_dict([] if resized else own["buckets"], parameters)
        self.step = int(own["step"])
        special = self.special()
        if special is not None and "special" in own:
            special.load_state_dict(own["special"], parameters)
        if self.config.codec == "adaptive" and "controller" in own:
            controller = self._controller(gradwire_group(self.group))
            controller.load_state_dict(own["controller"], parameters, resized=resized)

    def _settle(self) -> None:
        """Bring what is under way to its end, and the step with it."""
        if self._synchronize is not None:
            self._synchronize()
        self._wait_for_buckets()
        self._end_step()

    # ------------------------------------------------------------- buckets

    def know(self, module: nn.Module) -> None:
        """Say which model it is, before its first step."""
        self._module = module

    @property
    def finishes_together(self) -> bool:
        """Whether a bucket's end is an operation itself, for which ranks need one order."""
        measures = self.controller is not None and self.controller.is_measured
        return measures or self.config.codec in ("power_sgd", "block_sparse")

    def begin_step(self) -> None:
        """Gradients of a new step follow; called when all buckets of the last one are started."""
        self._wait_for_buckets()
        self._end_step()
        self.step += 1

    def start(self, content: BucketContent) -> BucketJob:
        """Start to average a bucket over all ranks; `finished` is to be called for it."""
        group = gradwire_group(self.group)
        if self.config.codec not in ("none", "adaptive"):
            check_float32("gradient", self.config.codec, *content.gradients)
        if self.config.codec == "adaptive":
            self._controller(group)
        job = BucketJob(self, group, content)
        with self._lock:
            self._open_buckets += 1
        return job

    def _controller(self, group: Any) -> Controller:
        """Return the controller, which is made when it is needed first."""
        if self.controller is None:
            self.controller = Controller(self.config, group)
            if self._module is not None:
                self.controller.know(self._module)
        return self.controller

    def finished(self) -> None:
        """Note the end of a bucket."""
        with self._lock:
            self._open_buckets -= 1
            self._done.notify_all()

    def _end_step(self) -> None:
        config = self.config
        scale = config.loss_scale() if config.loss_scale is not None else None
        self.feedback.end_step(scale)
        if config.residual_reset and self.step % config.residual_reset == 0:
            self.feedback.clear()
        if self.controller is not None:
            self.controller.end_step(self.feedback.norm())

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
