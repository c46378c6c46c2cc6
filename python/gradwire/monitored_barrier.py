"""A barrier that says who is missing."""

from __future__ import annotations

import time
from typing import Any

from gradwire.errors import GradwireError


def monitored_barrier(
    store: Any, sequence: int, rank: int, size: int, limit: float, wait_all_ranks: bool
) -> None:
    """Pass when all ranks have arrived, or fail naming those that have not.

    Goes through the rendezvous store and not through the engine: it must work, and leave the
    group usable, while some ranks are stuck elsewhere.

    Parameters
    ----------
    store
        The group's store.
    sequence
        How many monitored barriers this group has had, this one included.
    rank, size
        This rank and the number of ranks.
    limit
        Seconds to wait.
    wait_all_ranks
        Whether rank 0 names all missing ranks instead of the first.

    Raises
    ------
    GradwireError
        At rank 0, naming the missing ranks; at the other ranks, naming what rank 0 found.
    """
    key = f"monitored_barrier/{sequence}"
    if rank == 0:
        _collect(store, key, size, limit, wait_all_ranks)
    else:
        _report(store, key, rank, limit)


def _collect(store: Any, key: str, size: int, limit: float, wait_all_ranks: bool) -> None:
    """Wait for every other rank's key, then tell them the verdict."""
    deadline = time.monotonic() + limit
    missing: list[int] = []
    for rank in range(1, size):
        left = deadline - time.monotonic()
        if left <= 0 and not missing:
            _give_up(store, key, f"Rank 0 timed out in monitoredBarrier after {limit * 1e3:.0f} ms")
        if not _arrived(store, f"{key}/{rank}", max(left, 0.0)):
            missing.append(rank)
            if not wait_all_ranks:
                break
    if missing:
        ranks = ", ".join(str(rank) for rank in missing)
        noun = "Ranks" if len(missing) > 1 else "Rank"
        _give_up(
            store, key, f"{noun} {ranks} failed to pass monitoredBarrier in {limit * 1e3:.0f} ms"
        )
    store.set(f"{key}/verdict", "passed")


def _give_up(store: Any, key: str, reason: str) -> None:
    store.set(f"{key}/verdict", reason)
    raise GradwireError(f"[Rank 0]: {reason}")


def _report(store: Any, key: str, rank: int, limit: float) -> None:
    """Say that this rank is here and wait for rank 0's verdict."""
    store.set(f"{key}/{rank}", "here")
    verdict = "no answer in time"
    # Rank 0 may have arrived last and spends its whole limit waiting for others.
    if _arrived(store, f"{key}/verdict", 2 * limit):
        verdict = store.get(f"{key}/verdict").decode()
    if verdict != "passed":
        raise GradwireError(
            f"[Rank {rank}]: Rank {rank} successfully reached monitoredBarrier, but received "
            f"errors while waiting for send/recv from rank 0: {verdict}"
        )


def _arrived(store: Any, key: str, limit: float) -> bool:
    """Wait for a key of the store; a short poll leaves the connection to other threads."""
    deadline = time.monotonic() + limit
    while not store.check([key]):
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        time.sleep(min(left, 0.002))
    return True
