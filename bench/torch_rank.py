"""One rank of a PyTorch program: a collective on float32 CPU tensors through ``torch.distributed``.

Arguments: backend, collective (``all_reduce`` or ``reduce_scatter``), path of a file where ranks
meet, sizes in bytes. ``RANK`` and ``WORLD_SIZE`` come from the environment. Rank 0 prints one JSON
object.
"""

from __future__ import annotations

import datetime
import json
import os
import sys
from collections.abc import Callable

import torch
import torch.distributed as dist
from timing import measure


def main() -> None:
    """Measure each size and print the figures."""
    backend, collective, meeting = sys.argv[1:4]
    if backend == "gradwire":
        import gradwire  # noqa: F401 (registers the backend)
    torch.set_num_threads(1)
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group(
        backend,
        init_method=f"file://{meeting}",
        rank=rank,
        world_size=ranks,
        timeout=datetime.timedelta(seconds=60),
    )
    results = []
    for size in map(int, sys.argv[4:]):
        tensor, operation, expected = prepare(collective, size // 4, ranks)
        operation()
        if not bool((expected == ranks).all()):
            sys.exit(f"wrong sum at {size} bytes")
        tensor.zero_()
        results.append(measure(operation, dist.barrier, slowest, size))
    if rank == 0:
        print(json.dumps({"results": results}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def prepare(
    collective: str, elements: int, ranks: int
) -> tuple[torch.Tensor, Callable[[], object], torch.Tensor]:
    """Input of ones, the operation on it, and where its result is found."""
    tensor = torch.ones(elements)
    if collective == "all_reduce":
        return tensor, lambda: dist.all_reduce(tensor), tensor
    output = torch.zeros(elements // ranks)
    return tensor, lambda: dist.reduce_scatter_tensor(output, tensor), output


def slowest(times: list[float]) -> list[float]:
    """Element-wise maximum over all ranks."""
    tensor = torch.tensor(times, dtype=torch.float64)
    dist.all_reduce(tensor, dist.ReduceOp.MAX)
    return [float(time) for time in tensor]


if __name__ == "__main__":
    main()
