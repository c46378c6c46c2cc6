"""One rank of an MPI peer: all-reduce of float32, in place, through mpi4py.

Arguments are sizes in bytes. Rank 0 prints one JSON object.
"""

from __future__ import annotations

import functools
import json
import mmap
import sys

import numpy as np
from mpi4py import MPI
from timing import measure


def main() -> None:
    """Measure each size and print the figures."""
    world = MPI.COMM_WORLD
    results = []
    for size in map(int, sys.argv[1:]):
        # Private pages like those of `gradwire bench`; NumPy itself would ask for huge pages.
        pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        tensor = np.frombuffer(pages, dtype=np.float32)
        tensor[:] = 1
        world.Allreduce(MPI.IN_PLACE, tensor, MPI.SUM)
        if not (tensor == world.size).all():
            sys.exit(f"wrong sum at {size} bytes")
        tensor[:] = 0
        operation = functools.partial(world.Allreduce, MPI.IN_PLACE, tensor, MPI.SUM)
        combine = functools.partial(slowest, world)
        results.append(measure(operation, world.Barrier, combine, size))
    if world.rank == 0:
        print(json.dumps({"results": results}), flush=True)


def slowest(world: MPI.Intracomm, times: list[float]) -> list[float]:
    """Element-wise maximum over all ranks."""
    array = np.array(times)
    world.Allreduce(MPI.IN_PLACE, array, MPI.MAX)
    return [float(time) for time in array]


if __name__ == "__main__":
    main()
