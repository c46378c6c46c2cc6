"""One rank of a lab: how long an urgent operation takes alone, and behind a large one.

Rank 0 prints one JSON object with the seconds of an all-reduce of 64 KiB on idle wires and while an
all-reduce of 256 MiB is under way; the slowest rank's times count. All ranks start at moments of
the clock that the hosts of a lab share: none waits for another that is late.
"""

from __future__ import annotations

import json
import statistics
import sys
import time

import torch
import torch.distributed as dist

import gradwire
from gradwire.collectives import Delivery
from gradwire.compression.operations import gradwire_group

URGENT_BYTES, LARGE_BYTES = 64 << 10, 256 << 20
URGENT, USUAL = 0, 128
TILE_BYTES, IN_FLIGHT_BYTES = 16 << 10, 80 << 10
HEAD_START_S = 0.3
PERIOD_S, AWAKE_S = 0.04, 0.004
ALONE, BEHIND = 30, 15


def main() -> None:
    """Take this rank's part."""
    dist.init_process_group("gradwire")
    group = gradwire_group()
    if "--limit" in sys.argv:
        group.limit_in_flight(IN_FLIGHT_BYTES)
    urgent, large = torch.ones(URGENT_BYTES // 4), torch.ones(LARGE_BYTES // 4)

    def from_agreed_moment() -> float:
        start = (time.monotonic() // PERIOD_S + 2) * PERIOD_S
        time.sleep(start - time.monotonic() - AWAKE_S)
        while time.monotonic() < start:
            pass
        group._reduce_with_codec(urgent, "avg", None, None, Delivery(URGENT, TILE_BYTES)).wait()
        return time.monotonic() - start

    from_agreed_moment()
    alone = [from_agreed_moment() for _ in range(ALONE)]
    dist.barrier()
    work = group._reduce_with_codec(large, "avg", None, None, Delivery(USUAL, TILE_BYTES))
    time.sleep(HEAD_START_S)
    behind = [from_agreed_moment() for _ in range(BEHIND)]
    overtaken = not work.is_completed()
    work.wait()
    slowest = torch.tensor([statistics.median(alone), statistics.median(behind)])
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    if dist.get_rank() == 0:
        alone_s, behind_s = slowest.tolist()
        print(
            json.dumps({"alone_s": alone_s, "behind_s": behind_s, "overtaken": overtaken}),
            flush=True,
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    assert gradwire.__version__
    main()
