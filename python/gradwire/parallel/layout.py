"""Which parameters travel together, and how urgently: pure arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MOST_URGENT, LEAST_URGENT = 128, 255
"""Priorities of gradients: behind messages (64), level with other collectives or behind them."""


@dataclass(frozen=True)
class Member:
    """A parameter as the layout sees it.

    Attributes
    ----------
    bytes
        Of its gradient.
    kind
        Parameters of different kinds (type, device) are not merged.
    """

    bytes: int
    kind: object = None


def divide(members: Sequence[Member], merged_bytes: int) -> list[list[int]]:
    """Divide parameters, given in the order of need, into buckets.

    A gradient of at least `merged_bytes` is a bucket by itself, without a copy; smaller ones are
    merged up to that size, also across larger ones between them.

    Returns
    -------
    list of list of int
        Indices of each bucket's members; buckets in the order in which their first member is
        needed.
    """
    buckets: list[list[int]] = []
    open_buckets: dict[object, tuple[list[int], int]] = {}
    for index, member in enumerate(members):
        if member.bytes >= merged_bytes:
            buckets.append([index])
            continue
        bucket, filled = open_buckets.get(member.kind, ([], merged_bytes))
        if filled + member.bytes > merged_bytes:
            bucket, filled = [], 0
            buckets.append(bucket)
        bucket.append(index)
        open_buckets[member.kind] = (bucket, filled + member.bytes)
    return buckets


def priority(position: int, buckets: int) -> int:
    """Return the priority of the bucket that is needed as number `position` of all."""
    span = LEAST_URGENT - MOST_URGENT
    return MOST_URGENT + (position * span // max(1, buckets - 1) if buckets > 1 else 0)
