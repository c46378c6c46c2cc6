"""A rank dies: all others are told who and go on without it."""

from __future__ import annotations

import os
import signal
import time

import pytest
import torch
import torch.distributed as dist

import gradwire
from job import join, run


def lose(store: str, rank: int, size: int, victim: int) -> float:
    """Return how long after the death of `victim` this rank was told."""
    join(store, rank, size)
    tensor = torch.ones(1 << 18)
    dist.all_reduce(tensor)
    if rank == victim:
        with open(f"{store}-death", "w") as file:
            file.write(str(time.time()))
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(gradwire.GradwireError, match=f"rank {victim}") as caught:
        while True:
            dist.all_reduce(tensor)
    told = time.time()
    assert caught.value.culprit == victim
    with open(f"{store}-death") as file:
        delay = told - float(file.read())

    survivors = [other for other in range(size) if other != victim]
    group = dist.new_group(survivors, use_local_synchronization=True)
    tensor = torch.ones(1 << 18)
    dist.all_reduce(tensor, group=group)
    assert bool((tensor == len(survivors)).all())
    with pytest.raises(gradwire.GradwireError, match=f"rank {victim}"):
        dist.barrier()
    return delay


@pytest.mark.parametrize(("size", "victim"), [(2, 1), (4, 0), (4, 2)])
def test_survivors_are_told_and_go_on(size: int, victim: int) -> None:
    delays = run(lose, size, victim, joins=False, killed={victim})
    assert all(delay < 1.0 for rank, delay in enumerate(delays) if rank != victim), delays


def interrupt() -> float:
    """Ctrl-C ends a wait for an operation that never will."""
    if dist.get_rank() == 1:
        time.sleep(2)
        return 0.0
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        dist.all_reduce(torch.ones(4))
    return time.monotonic() - start


def test_interrupt() -> None:
    assert max(run(interrupt, 2)) < 1.0
