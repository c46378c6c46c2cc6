"""What the link can do, measured, and the sizes that follow from it.

The model is Hockney's: an operation takes `alpha + beta * bytes`. All ranks use the slowest rank's
figures, so they come to the same sizes.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from gradwire.collectives import Delivery
from gradwire.compression.bucket import in_channel

PATIENCE_S = 5e-4
"""How long an urgent operation may be held up by what is on the wire in front of it."""

MOST_SENDERS = 4
"""Peers that send to one rank at once, at most: all in a direct exchange among few ranks, a few in
other schedules."""

SMALLEST_TILE, LARGEST_TILE = 16 << 10, 128 << 10
"""Below, the kernel's work for each piece outweighs what urgent operations gain."""

_PROBE_BYTES = (256, 256 << 10)
_PROBES = 5


@dataclass(frozen=True)
class LinkModel:
    """Start-up time and inverse bandwidth of a rank's link.

    Attributes
    ----------
    alpha_s
        Seconds that an operation takes without any bytes.
    beta_s
        Seconds for each byte that a rank sends.
    peers
        The number of other ranks.
    """

    alpha_s: float
    beta_s: float
    peers: int

    @property
    def merged_bytes(self) -> int:
        """Gradients are merged up to this size: where start-up costs as much as the bytes.

        Merging delays nothing: gradients become ready in the reverse of the order in which the next
        forward needs them, so a merged bucket is ready with the member that is needed first.
        """
        return int(min(max(self.alpha_s / self.beta_s, 4 << 10), 4 << 20))

    @property
    def in_flight_bytes(self) -> int:
        """What is on its way to a peer is limited to this: the link's delay and the patience.

        What all peers have on its way to one rank shares its link, and so they share the patience.
        """
        senders = max(1, min(self.peers, MOST_SENDERS))
        bytes_ = (self.alpha_s / 2 + PATIENCE_S / senders) / self.beta_s
        return int(min(max(bytes_, 4 * SMALLEST_TILE), 16 << 20))

    @property
    def tile_bytes(self) -> int:
        """Operations give way between tiles of this size: a power of two."""
        wanted = self.in_flight_bytes / 2
        tile = SMALLEST_TILE
        while tile * 2 <= min(wanted, LARGEST_TILE):
            tile *= 2
        return tile

    def differs_from(self, other: LinkModel) -> bool:
        """Return whether sizes derived from the other are worth changing."""
        ratios = (self.alpha_s / other.alpha_s, self.beta_s / other.beta_s)
        return any(not 0.5 <= ratio <= 2 for ratio in ratios)


def measure(group: Any, channel: str) -> LinkModel:
    """Time a few all-reduces; to be called by all ranks, with idle wires.

    Parameters
    ----------
    group
        The process group, gradwire's.
    channel
        What numbers the probes apart from other operations.
    """
    ranks = group.size()
    if ranks == 1:
        return LinkModel(1e-5, 1e-10, 0)
    own = []
    with in_channel(channel):
        for bytes_ in _PROBE_BYTES:
            tensor = torch.zeros(bytes_ // 4)
            seconds = []
            for _ in range(_PROBES + 1):
                start = time.perf_counter()
                group._reduce_with_codec(tensor, "avg", None, None, Delivery(label="probe")).wait()
                seconds.append(time.perf_counter() - start)
            # The shortest: the others are the scheduler's, not the link's.
            own.append(min(seconds[1:]))
        slowest = torch.tensor(own, dtype=torch.float64)
        group._reduce_in_place("all_reduce", slowest, dist.ReduceOp.MAX, 0, None).wait()
    small, large = slowest.tolist()
    sent = 2 * (ranks - 1) / ranks * (_PROBE_BYTES[1] - _PROBE_BYTES[0])
    return LinkModel(small, max(large - small, 1e-6) / sent, ranks - 1)
