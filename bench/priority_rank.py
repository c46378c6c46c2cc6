"""One rank of a lab: how long an urgent operation takes alone, and behind a large one.

Rank 0 prints one JSON object with the median seconds of an all-reduce of 64 KiB: on idle wires, and
while an all-reduce of 256 MiB is under way, with what is in flight limited as the measured link
suggests and without a limit. The slowest rank's times count. All ranks start at moments of the
clock that the hosts of a lab share: none waits for another that is late.
"""

from __future__ import annotations

import json
import statistics
import time
from typing import Any

import torch
import torch.distributed as dist

import gradwire
from gradwire.collectives import Delivery
from gradwire.compression.operations import gradwire_group
from gradwire.parallel.link import LinkModel, measure

URGENT_BYTES, LARGE_BYTES = 64 << 10, 256 << 20
URGENT, USUAL = 0, 128
HEAD_START_S = 0.3
PERIOD_S, AWAKE_S = 0.04, 0.004
ALONE, BEHIND = 30, 15


class Rank:
    """What one rank sends, and how long that takes."""

    def __init__(self, group: Any, link: LinkModel) -> None:
        self._group, self._tile = group, link.tile_bytes
        self._urgent, self._large = torch.ones(URGENT_BYTES // 4), torch.ones(LARGE_BYTES // 4)

    def alone(self) -> float:
        """Return the median seconds on idle wires."""
        self._timed()
        return statistics.median(self._timed() for _ in range(ALONE))

    def behind(self, in_flight_bytes: int | None) -> float:
        """Return the median seconds behind a large operation."""
        self._group.limit_in_flight(in_flight_bytes)
        dist.barrier()
        work = self._start(self._large, USUAL)
        time.sleep(HEAD_START_S)
        seconds = [self._timed() for _ in range(BEHIND)]
        assert not work.is_completed(), "the large operation ended before the urgent ones"
        work.wait()
        return statistics.median(seconds)

    def _timed(self) -> float:
        start = (time.monotonic() // PERIOD_S + 2) * PERIOD_S
        time.sleep(start - time.monotonic() - AWAKE_S)
        while time.monotonic() < start:
            pass
        self._start(self._urgent, URGENT).wait()
        return time.monotonic() - start

    def _start(self, tensor: torch.Tensor, priority: int) -> Any:
        delivery = Delivery(priority, self._tile)
        return self._group._reduce_with_codec(tensor, "avg", None, None, delivery)


def main() -> None:
    """Take this rank's part."""
    dist.init_process_group("gradwire")
    group = gradwire_group()
    link = measure(group, "link")
    rank = Rank(group, link)
    own = [rank.alone(), rank.behind(link.in_flight_bytes), rank.behind(None)]
    slowest = torch.tensor(own)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    if dist.get_rank() == 0:
        names = ("alone_s", "behind_s", "behind_unlimited_s")
        figures = dict(zip(names, slowest.tolist(), strict=True))
        sizes = {"in_flight_bytes": link.in_flight_bytes, "tile_bytes": link.tile_bytes}
        print(json.dumps({**figures, **sizes}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    assert gradwire.__version__
    main()
