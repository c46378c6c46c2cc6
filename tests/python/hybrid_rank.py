"""One rank of a job in data, pipeline and tensor parallel, 2 x 2 x 2, for `test_hybrid`.

Trains twice under each pipeline schedule: gradients averaged after the schedule, and hidden by
`gradwire.parallelize`. Rank 0 prints one JSON object with each run's losses and seconds a step.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import Schedule1F1B, ScheduleInterleaved1F1B
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

import gradwire

STAGES, BLOCKS = 2, 4
WIDTH, BATCH, MICRO_BATCHES = 256, 16, 4
STEPS = 6


class Block(nn.Module):
    """Half a transformer's layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, hidden: Tensor) -> Tensor:
        """Map ``(batch, width)`` to the same shape."""
        updated: Tensor = hidden + self.down(torch.tanh(self.up(self.norm(hidden))))
        return updated


def blocks() -> list[Block]:
    """Return the whole model, the same on every rank."""
    torch.manual_seed(0)
    return [Block() for _ in range(BLOCKS)]


def batch(step: int, replica: int) -> tuple[Tensor, Tensor]:
    """Draw what a replica sees in a step."""
    generator = torch.Generator().manual_seed(100 * step + replica)
    return tuple(torch.randn(BATCH, WIDTH, generator=generator) for _ in range(2))  # type: ignore[return-value]


def loss_of(output: Tensor, target: Tensor) -> Tensor:
    """Return a micro-batch's part of the mean."""
    return nn.functional.mse_loss(output, target) / MICRO_BATCHES


def reference() -> list[float]:
    """Train without any parallelism."""
    model = nn.Sequential(*blocks())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for step in range(STEPS):
        pairs = [batch(step, replica) for replica in range(2)]
        inputs, targets = (torch.cat(parts) for parts in zip(*pairs, strict=True))
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def stages_of(mesh: DeviceMesh, chunks: int) -> list[PipelineStage]:
    """Build this rank's chunks of the model, divided over the tensor parallel ranks."""
    rank, count = mesh["pp"].get_local_rank(), STAGES * chunks
    size = BLOCKS // count
    stages = []
    for number in range(rank, count, STAGES):
        part = nn.Sequential(*blocks()[number * size : (number + 1) * size])
        plan: dict[str, Any] = {}
        for index in range(size):
            plan |= {f"{index}.up": ColwiseParallel(), f"{index}.down": RowwiseParallel()}
        parallelize_module(part, mesh["tp"], plan)
        device = torch.device("cpu")
        stages.append(PipelineStage(part, number, count, device, group=mesh["pp"].get_group()))
    return stages


def train(mesh: DeviceMesh, chunks: int, hides: bool) -> tuple[list[float], float]:
    """Train; return the losses that the last stage has seen and the median seconds of a step."""
    stages = stages_of(mesh, chunks)
    modules = nn.ModuleList(stage.submod for stage in stages)
    optimizer = torch.optim.AdamW(modules.parameters(), lr=1e-3)
    kind: Any = Schedule1F1B if chunks == 1 else ScheduleInterleaved1F1B
    schedule = kind(stages[0] if chunks == 1 else stages, MICRO_BATCHES, loss_of, scale_grads=False)
    group = mesh["dp"].get_group()
    average: Callable[[], None] = lambda: None  # noqa: E731 - one of two ways
    if hides:
        gradwire.parallelize(modules, optimizer, group=group, backwards_per_step=MICRO_BATCHES)
    else:

        def average() -> None:
            for parameter in modules.parameters():
                gradient: Any = parameter.grad
                local = gradient.to_local() if isinstance(gradient, DTensor) else gradient
                dist.all_reduce(local, dist.ReduceOp.AVG, group=group)

    losses, seconds = [], []
    for step in range(STEPS):
        began = time.perf_counter()
        losses.append(run_step(mesh, schedule, step))
        average()
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - began)
    return losses, statistics.median(seconds[2:])


def run_step(mesh: DeviceMesh, schedule: Any, step: int) -> float:
    """Run all micro-batches through the pipeline; return the loss, 0 on other stages."""
    inputs, targets = batch(step, mesh["dp"].get_local_rank())
    losses: list[Tensor] = []
    is_first = mesh["pp"].get_local_rank() == 0
    arguments = (inputs,) if is_first else ()
    if is_first:
        schedule.step(*arguments)
    else:
        schedule.step(target=targets, losses=losses)
    return float(sum(loss.detach() for loss in losses)) if losses else 0.0


def main() -> None:
    """Take this rank's part."""
    torch.set_num_threads(1)
    dist.init_process_group("gradwire")
    mesh = init_device_mesh("cpu", (2, STAGES, 2), mesh_dim_names=("dp", "pp", "tp"))
    runs = {}
    for name, chunks in (("1f1b", 1), ("interleaved", 2)):
        for hides in (False, True):
            losses, seconds = train(mesh, chunks, hides)
            means = torch.tensor(losses)
            dist.all_reduce(means)  # Of two replicas, each seen by two tensor parallel ranks.
            slowest = torch.tensor(seconds)
            dist.all_reduce(slowest, dist.ReduceOp.MAX)
            way = f"{name}, {'hidden' if hides else 'after the schedule'}"
            runs[way] = {"losses": (means / 4).tolist(), "step_s": float(slowest)}
    if dist.get_rank() == 0:
        print(json.dumps({"reference": reference(), "runs": runs}), flush=True)
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
