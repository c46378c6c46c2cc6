"""How one collective is timed: the same rules as ``gradwire bench``, for the peers.

Sizes up to 64 KiB are timed in batches of 20 operations back to back, larger ones one by one. A
barrier comes before each batch, the slowest rank's time counts, and the figures are the median and
the 99th percentile over the batches. Without a number of operations each size is measured for
0.3 s, with 5 to 2000 operations.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable

BATCHED_BYTES = 64 << 10
BATCH = 20
WARM_UP = 5
ENOUGH_SECONDS = 0.3
FEWEST, MOST = 5, 2000


def measure(
    operation: Callable[[], object],
    barrier: Callable[[], object],
    slowest: Callable[[list[float]], list[float]],
    size: int,
) -> dict[str, float]:
    """Time an operation; to be called by all ranks.

    Parameters
    ----------
    operation
        Runs the collective once and waits for it.
    barrier
        Returns when all ranks have called it.
    slowest
        Element-wise maximum over all ranks.
    size
        Bytes of the tensor.

    Returns
    -------
    dict
        ``size_bytes``, ``time_us`` and ``time_us_p99``, the same on all ranks.
    """
    quickest = math.inf
    for _ in range(WARM_UP):
        start = time.perf_counter()
        operation()
        quickest = min(quickest, time.perf_counter() - start)
    iterations = int(min(max(ENOUGH_SECONDS / max(slowest([quickest])[0], 1e-9), FEWEST), MOST))
    batch = BATCH if size <= BATCHED_BYTES else 1
    times = []
    for _ in range(math.ceil(iterations / batch)):
        barrier()
        start = time.perf_counter()
        for _ in range(batch):
            operation()
        times.append((time.perf_counter() - start) / batch)
    times = sorted(slowest(times))
    return {
        "size_bytes": size,
        "time_us": statistics.median(times) * 1e6,
        "time_us_p99": times[math.ceil(len(times) * 99 / 100) - 1] * 1e6,
    }
