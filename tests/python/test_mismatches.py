"""Ranks that disagree: an error on every rank that says who asked for what."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import gradwire
from job import join, run


def of_dtype(rank: int) -> None:
    dist.all_reduce(torch.ones(64, dtype=torch.float32 if rank != 1 else torch.float64))


def of_operator(rank: int) -> None:
    dist.all_reduce(torch.ones(64), dist.ReduceOp.MAX if rank == 1 else dist.ReduceOp.SUM)


def of_shape(rank: int) -> None:
    dist.all_reduce(torch.ones(65 if rank == 1 else 64))


def of_shape_when_large(rank: int) -> None:
    dist.all_reduce(torch.ones((1 << 20) + (rank == 1)))


def of_collective(rank: int) -> None:
    if rank == 1:
        dist.barrier()
    else:
        dist.all_reduce(torch.ones(64))


def of_root(rank: int) -> None:
    dist.broadcast(torch.ones(64), 1 if rank == 1 else 0)
    # A root has no answer to wait for: it may have sent all before it hears that another rank
    # meant another one. Its next operation tells.
    dist.barrier()


CASES: dict[Callable[[int], None], list[str]] = {
    of_dtype: ["float32", "float64"],
    of_operator: ["sum", "max"],
    of_shape: ["64 elements", "65 elements"],
    of_shape_when_large: ["1048576 elements", "1048577 elements"],
    of_collective: ["all_reduce", "barrier"],
    of_root: ["root 0", "root 1"],
}


def disagree(store: str, rank: int, size: int, case: Callable[[int], None]) -> str:
    join(store, rank, size)
    with pytest.raises(gradwire.GradwireError) as caught:
        case(rank)
    # A rank that leaves before another has asked for its operation is all that one hears of.
    leave_together(store, size)
    return str(caught.value)


def leave_together(store: str, size: int) -> None:
    meeting = dist.FileStore(f"{store}-meeting", size)
    meeting.add("arrived", 1)
    while meeting.add("arrived", 0) < size:
        time.sleep(0.01)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_every_rank_is_told(case: Callable[[int], None]) -> None:
    for message in run(disagree, 3, case, joins=False):
        assert "rank 1" in message, message
        for word in CASES[case]:
            assert word in message, message


def time_out() -> str:
    group = dist.new_group(timeout=timedelta(seconds=0.5))
    if dist.get_rank() == 1:
        dist.monitored_barrier()
        return "rank 1"
    with pytest.raises(gradwire.GradwireError) as caught:
        dist.all_reduce(torch.ones(4), group=group)
    dist.monitored_barrier()
    return str(caught.value)


@pytest.mark.skipif(torch.__version__ < "2.15", reason="monitored_barrier is for Gloo only there")
def test_deadline_names_who_is_missing() -> None:
    for message in run(time_out, 3):
        assert "rank 1" in message, message
