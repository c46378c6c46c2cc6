"""One rank's training program: a GPT under DDP, over the backend it is told to use.

Started once per rank with torchrun's environment (``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR``,
``MASTER_PORT``). Every rank writes what happens as JSON lines to ``EVENTS/rank<N>.jsonl``;
:mod:`run` follows those files.

Training is interrupted at regular points for a few steps *without communication*: the same
forward, backward and optimizer step under ``no_sync``, all ranks at once so that they contend for
the processors as they do in training. Parameters and optimizer are put back bit for bit
afterwards. The difference between the two kinds of step is the exposed communication time.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from interface import interface_towards, sent_bytes
from model import GPT, Shape, parameter_count
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power_sgd
from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:
    from gradwire import Parallel

TRACED_STEPS = 4
WARM_UP_STEPS = 3  # not timed: DDP lays its buckets out anew after the first one
COLLECTIVE_TIMEOUT = timedelta(seconds=60)


class EventLog:
    """Appends one rank's events to its file, one JSON object a line."""

    def __init__(self, directory: Path, rank: int) -> None:
        self._file = (directory / f"rank{rank}.jsonl").open("w", encoding="utf-8")

    def write(self, event: str, **fields: object) -> None:
        """Append one event and flush it, so that a follower sees it at once."""
        self._file.write(json.dumps({"event": event, "at": time.time(), **fields}) + "\n")
        self._file.flush()


class Batches:
    """Random windows of the training text and fixed windows of the held-out text.

    Parameters
    ----------
    directory
        Where :func:`text.write` left the text.
    batch, context
        Windows per batch and tokens per window.
    seed, rank, world_size
        Ranks draw different windows; the same seed gives the same windows again.
    """

    def __init__(
        self, directory: Path, batch: int, context: int, seed: int, rank: int, world_size: int
    ) -> None:
        self._train = _read(directory / "train.bin")
        self._held_out = _read(directory / "held_out.bin")
        self._batch, self._context = batch, context
        self._rank, self._world_size = rank, world_size
        self._random = torch.Generator().manual_seed(seed * 1_000_003 + rank)

    def draw(self) -> tuple[Tensor, Tensor]:
        """Draw the next training batch: inputs and targets, int64, ``(batch, context)``."""
        last = len(self._train) - self._context - 1
        starts = torch.randint(last, (self._batch,), generator=self._random)
        return self._windows(self._train, starts.tolist())

    def held_out(self, count: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield this rank's share of ``count`` batches a rank, spread over the held-out text."""
        windows = count * self._batch * self._world_size
        stride = (len(self._held_out) - self._context - 1) // windows
        mine = [stride * index for index in range(self._rank, windows, self._world_size)]
        for first in range(0, len(mine), self._batch):
            yield self._windows(self._held_out, mine[first : first + self._batch])

    def _windows(self, text: Tensor, starts: list[int]) -> tuple[Tensor, Tensor]:
        windows = torch.stack([text[at : at + self._context + 1] for at in starts]).long()
        return windows[:, :-1], windows[:, 1:]


class SavedState:
    """Parameters and optimizer state as they were, to be put back bit for bit."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer_tensors = (
            value
            for state in optimizer.state.values()
            for value in state.values()
            if isinstance(value, Tensor)
        )
        self._live = [*(p.detach() for p in model.parameters()), *optimizer_tensors]
        self._saved = [tensor.clone() for tensor in self._live]

    def restore(self) -> None:
        """Put everything back."""
        for live, saved in zip(self._live, self._saved, strict=True):
            live.copy_(saved)


class Training:
    """The model, its optimizer and its data on one rank."""

    def __init__(self, options: argparse.Namespace, log: EventLog) -> None:
        torch.manual_seed(options.seed)
        self.options, self.log = options, log
        self.bare = GPT(Shape(options.layers, options.width, options.heads, options.context))
        self.optimizer = torch.optim.AdamW(
            self.bare.parameters(), lr=options.learning_rate, betas=(0.9, 0.95), fused=True
        )
        self.parallel: Parallel | None = None
        self.model: torch.nn.Module = self.bare
        if options.parallelize:
            self.parallel = parallelize(self.bare, self.optimizer, options.codec)
            self.no_sync = self.parallel.no_sync
        else:
            ddp = DistributedDataParallel(
                self.bare, gradient_as_bucket_view=True, bucket_cap_mb=options.bucket_mb
            )
            if options.codec:
                register_codec(ddp, options.backend, options.codec)
            self.model, self.no_sync = ddp, ddp.no_sync
        self.batches = Batches(
            options.text,
            options.batch,
            options.context,
            options.seed,
            dist.get_rank(),
            dist.get_world_size(),
        )

    def run(self) -> None:
        """Train for the steps asked for, in blocks, measuring and judging between blocks."""
        self.log.write("started", parameters=parameter_count(self.model))
        self._evaluate(0)
        done = 0
        for end in block_ends(self.options.steps, self.options.blocks):
            dist.barrier()
            sent = sent_bytes()
            for step in range(done, end):
                self._train_one(step, is_last=step == end - 1)
            self.log.write("block", steps=end - done, sent_bytes=sent_bytes() - sent)
            done = end
            self._measure_without_communication()
            self._evaluate(done)
        if self.options.trace is not None:
            self._trace(self.options.trace)
        self.log.write("finished")

    def _trace(self, directory: Path) -> None:
        """Record a few more steps, for the report; gradwire's traces only."""
        from gradwire import profile

        with profile(directory):
            for _ in range(TRACED_STEPS):
                self._timed_step(finishes=False)

    def _train_one(self, step: int, *, is_last: bool) -> None:
        rate = learning_rate(step, self.options.steps, self.options.learning_rate)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        # What the last step has put off is its own; the others' is in the step that follows.
        seconds, loss = self._timed_step(finishes=is_last)
        self.log.write(
            "step", step=step + 1, seconds=seconds, loss=loss, timed=step >= WARM_UP_STEPS
        )

    def _measure_without_communication(self) -> None:
        # The model drifts apart between ranks here, which is why its state is put back; drawing
        # from the training windows is harmless as every run draws the same number.
        saved = SavedState(self.model, self.optimizer)
        dist.barrier()
        with self.no_sync():
            for _ in range(self.options.steps_without_communication):
                seconds, _ = self._timed_step(finishes=True)
                self.log.write("step_without_communication", seconds=seconds)
        saved.restore()

    def _timed_step(self, *, finishes: bool) -> tuple[float, float]:
        began = time.perf_counter()
        with self._span("step"):
            # Under DDP zeroed in place: gradients stay views of its buckets, so that steps with
            # and without communication touch the same memory.
            self.optimizer.zero_grad(set_to_none=self.parallel is not None)
            with self._span("forward"):
                loss = self.model(*self.batches.draw())
            with self._span("backward"):
                loss.backward()
            with self._span("optimizer"):
                self.optimizer.step()
            if finishes and self.parallel is not None:
                self.parallel.synchronize()
        return time.perf_counter() - began, float(loss.detach())

    def _span(self, category: str) -> AbstractContextManager[None]:
        """Note a part of a step in the trace; `parallelize` does so by itself."""
        if self.options.trace is None or self.parallel is not None:
            return nullcontext()
        from gradwire import tracing

        return tracing.span(category, category)

    @torch.no_grad()
    def _evaluate(self, step: int) -> None:
        # The bare module: DDP's forward would bring communication into it.
        losses = [
            float(self.bare(inputs, targets))
            for inputs, targets in self.batches.held_out(self.options.held_out_batches)
        ]
        self.log.write("held_out", step=step, loss=sum(losses) / len(losses))


def parallelize(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, codec: str | None
) -> Parallel:
    """Hide communication behind backward and the next forward, by gradwire."""
    import gradwire

    return gradwire.parallelize(model, optimizer, codec or "none")


def register_codec(model: DistributedDataParallel, backend: str, codec: str) -> None:
    """Make gradients travel encoded: by gradwire's hook, or on other backends by PyTorch's own.

    Raises
    ------
    ValueError
        If PyTorch has no such hook.
    """
    if backend == "gradwire":
        import gradwire

        model.register_comm_hook(*gradwire.ddp_hook(codec))
    elif codec == "fp16":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif codec == "power_sgd":
        state = power_sgd.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=4)
        model.register_comm_hook(state, power_sgd.powerSGD_hook)
    else:
        raise ValueError(f"PyTorch has no hook {codec!r}; it has fp16 and power_sgd")


def block_ends(steps: int, blocks: int) -> list[int]:
    """Split `steps` into at most `blocks` nearly equal blocks; return the step each ends at."""
    blocks = min(blocks, steps)
    return [steps * block // blocks for block in range(1, blocks + 1)]


def learning_rate(step: int, steps: int, peak: float) -> float:
    """Linear warm-up over the first tenth, then a cosine down to a tenth of `peak`."""
    warm_up = max(1, steps // 10)
    if step < warm_up:
        return peak * (step + 1) / warm_up
    done = (step - warm_up) / max(1, steps - warm_up)
    return peak * (0.1 + 0.45 * (1 + math.cos(math.pi * done)))


def join(backend: str) -> None:
    """Join the job that torchrun's environment describes."""
    if backend == "gradwire":
        import gradwire  # noqa: F401  registers the backend
    elif backend == "gloo" and "GLOO_SOCKET_IFNAME" not in os.environ:
        # Gloo looks up its own host name, which says nothing about the job's network.
        os.environ["GLOO_SOCKET_IFNAME"] = interface_towards(os.environ["MASTER_ADDR"])
    dist.init_process_group(backend, timeout=COLLECTIVE_TIMEOUT)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="One rank of the demo; demo/run.py starts it.")
    parser.add_argument("--backend", required=True)
    parser.add_argument("--codec", help="how gradients travel, if not as they are")
    parser.add_argument(
        "--parallelize", action="store_true", help="gradwire.parallelize instead of DDP"
    )
    parser.add_argument("--text", type=Path, required=True, help="train.bin and held_out.bin")
    parser.add_argument("--events", type=Path, required=True, help="where rank<N>.jsonl goes")
    parser.add_argument("--trace", type=Path, help="where a trace of the last steps goes")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--blocks", type=int, default=10)
    parser.add_argument("--steps-without-communication", type=int, default=3, help="a block")
    parser.add_argument("--held-out-batches", type=int, default=4, help="a rank and evaluation")
    parser.add_argument("--batch", type=int, default=4, help="windows per rank and step")
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--heads", type=int, default=6)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--bucket-mb", type=float, default=25, help="DDP's bucket_cap_mb")
    return parser.parse_args(arguments)


def main() -> None:
    """Train, and leave a ``failed`` event behind when that did not work."""
    options = parse()
    torch.set_num_threads(1)
    log = EventLog(options.events, int(os.environ["RANK"]))
    try:
        join(options.backend)
        Training(options, log).run()
        dist.barrier()
    except Exception as error:
        log.write("failed", error=f"{type(error).__name__}: {error}")
        raise
    dist.destroy_process_group()


def _read(path: Path) -> Tensor:
    return torch.from_file(str(path), size=path.stat().st_size, dtype=torch.uint8)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
