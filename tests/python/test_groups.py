"""Groups: their life, their neighbours, and how torch makes them."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

import gradwire
from job import join, run


def total(group: Any = None) -> float:
    """Count the ranks of a group by an all-reduce."""
    tensor = torch.ones(3)
    dist.all_reduce(tensor, group=group)
    return float(tensor[0])


def use_groups() -> None:
    rank = dist.get_rank()
    assert dist.get_backend() == "gradwire"
    pair = dist.new_group([0, 2])
    if rank in (0, 2):
        assert total(pair) == 2
        assert dist.get_rank(pair) == rank // 2
    alone = dist.new_group([rank], use_local_synchronization=True)
    assert total(alone) == 1
    dist.destroy_process_group(alone)
    again = dist.new_group([rank], use_local_synchronization=True)
    assert total(again) == 1
    assert total() == 3
    default = distributed_c10d._get_default_group()
    assert isinstance(default, gradwire.GradwireProcessGroup)
    assert default.counters()


def split() -> None:
    part = dist.split_group(split_ranks=[[0], [2, 1]])
    rank = dist.get_rank()
    assert total(part) == (1 if rank == 0 else 2)
    assert dist.get_rank(part) == {0: 0, 2: 0, 1: 1}[rank]


def start_again(store: str, rank: int, size: int) -> None:
    for round in range(3):
        join(f"{store}{round}", rank, size)
        assert total() == size
        dist.barrier()
        dist.destroy_process_group()
    # The same store serves several groups, as an agent's store does under torchrun.
    shared = dist.FileStore(f"{store}-shared", size)
    for _ in range(2):
        dist.init_process_group("gradwire", store=shared, rank=rank, world_size=size)
        assert total() == size
        dist.barrier()
        dist.destroy_process_group()


def beside_gloo(store: str, rank: int, size: int) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    for _ in range(2):
        group = dist.new_group([0, 1], backend="gradwire")
        if rank < 2:
            assert total(group) == 2
        dist.barrier()
        dist.destroy_process_group(group)
    dist.destroy_process_group()


def mixed(store: str, rank: int, size: int) -> None:
    parameters: Any = {"init_method": f"file://{store}", "rank": rank, "world_size": size}
    if torch.__version__ < "2.14":
        with pytest.raises(RuntimeError, match=r"needs torch 2\.14"):
            dist.init_process_group("cpu:gradwire,cuda:gloo", **parameters)
        return
    dist.init_process_group("cpu:gradwire,cuda:gloo", **parameters)
    assert total() == size
    output = torch.empty(2 * size)
    dist.all_gather_into_tensor(output, torch.full((2,), float(rank)))
    assert output[-1] == size - 1
    work = dist.all_reduce(output, async_op=True)
    assert work is not None
    work.wait()
    assert output[-1] == size * (size - 1)
    dist.barrier()
    dist.destroy_process_group()


def opposite_orders() -> None:
    """Two threads use two groups, in opposite orders on the two halves of the ranks."""
    rank, size = dist.get_rank(), dist.get_world_size()
    groups = [dist.new_group(), dist.new_group()]
    failures: list[str] = []
    start = threading.Barrier(2)

    def work(index: int) -> None:
        start.wait()
        for round in range(100):
            tensor = torch.full((1000,), float(round * (index + 1)))
            dist.all_reduce(tensor, group=groups[index])
            if tensor[-1] != size * round * (index + 1):
                failures.append(f"group {index} round {round}: {tensor[-1]}")

    order = [0, 1] if rank % 2 else [1, 0]
    threads = [threading.Thread(target=work, args=(index,)) for index in order]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    # One thread: started in opposite orders, waited for in opposite orders.
    tensors = [torch.ones(10), torch.ones(10)]
    works = {
        index: dist.all_reduce(tensors[index], group=groups[index], async_op=True)
        for index in order
    }
    for index in reversed(order):
        works[index].wait()
    assert all(bool((tensor == size).all()) for tensor in tensors)


def abort_group() -> None:
    group = dist.new_group()
    rank = dist.get_rank()
    if rank == 0:
        group.abort()
    with pytest.raises(gradwire.GradwireError, match="rank 0"):
        while True:
            total(group)
    assert total() == dist.get_world_size()


def change_timeout() -> None:
    group = dist.new_group()
    group.set_timeout(timedelta(seconds=0.3))
    if dist.get_rank() == 0:
        with pytest.raises(gradwire.GradwireError):
            total(group)
    dist.barrier()


def refuse_options(store: str, rank: int, size: int) -> None:
    with pytest.raises(ValueError, match="no_such_setting"):
        join(store, rank, size, no_such_setting=1)
    with pytest.raises(TypeError, match=r"gradwire\.options"):
        dist.init_process_group(
            "gradwire", init_method=f"file://{store}", rank=0, world_size=1, pg_options=object()
        )


def over_tcp(store: str, rank: int, size: int) -> None:
    join(store, rank, size, transport="tcp", algorithm="ring", socket_ifname="lo")
    assert total() == size
    dist.barrier()


def test_groups() -> None:
    run(use_groups, 3)


@pytest.mark.skipif(torch.__version__ < "2.15", reason="split_group is for NCCL only there")
def test_split_group() -> None:
    run(split, 3)


@pytest.mark.parametrize(
    ("function", "size"),
    [(start_again, 2), (beside_gloo, 3), (mixed, 2), (refuse_options, 1), (over_tcp, 3)],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_start(function: Any, size: int) -> None:
    run(function, size, joins=False)


@pytest.mark.parametrize(
    "function",
    [opposite_orders, abort_group, change_timeout],
    ids=lambda function: function.__name__,
)
def test_use(function: Any) -> None:
    run(function, 2)
