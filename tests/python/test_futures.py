"""Works and futures: callbacks that wait for other operations, errors, and dropped handles."""

from __future__ import annotations

import gc
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist

import gradwire
from job import run


def start(tensor: torch.Tensor) -> Any:
    work = dist.all_reduce(tensor, async_op=True)
    assert work is not None
    return work


def nested() -> None:
    """Callbacks start operations and wait for them, in another order on every rank."""
    rank, size = dist.get_rank(), dist.get_world_size()
    count = 32
    firsts = [torch.full((16,), float(index)) for index in range(count)]

    def follow(index: int) -> Any:
        def callback(future: Any) -> torch.Tensor:
            time.sleep(((index * 7 + rank * 13) % 5) * 1e-3)
            tensor = future.value()[0] + index
            return start(tensor).get_future().wait()[0]

        return callback

    def again(future: Any) -> torch.Tensor:
        tensor = future.value().clone()
        dist.all_reduce(tensor)
        return tensor

    futures = []
    for index, tensor in enumerate(firsts):
        future = start(tensor).get_future()
        if index % 4 == rank:
            future.wait()  # Its callback runs at once here, and later on other ranks.
        futures.append(future.then(follow(index)).then(again))
    for index, future in enumerate(futures):
        expected = (index * size + index) * size * size
        assert torch.equal(future.wait(), torch.full((16,), float(expected))), index


def two_callbacks() -> None:
    """Two callbacks of one future each start an operation."""
    size = dist.get_world_size()
    for _ in range(20):
        future = start(torch.ones(1)).get_future()
        results = []
        for factor in (1.0, 2.0):

            def callback(_: Any, factor: float = factor) -> torch.Tensor:
                tensor = torch.full((3,), factor)
                dist.all_reduce(tensor)
                return tensor

            results.append(future.then(callback))
        assert [float(result.wait()[0]) for result in results] == [size, 2.0 * size]


def states() -> None:
    size = dist.get_world_size()
    tensor = torch.ones(1 << 16)
    work = start(tensor)
    assert work.get_future() is work.get_future()
    work.wait()
    assert work.is_completed()
    assert work.is_success()
    assert work.exception() is None
    assert work.result()[0] is tensor
    assert work.get_future().wait()[0] is tensor
    assert work.get_future().value()[0] is tensor
    assert tensor[0] == size
    received = torch.empty(2)
    if dist.get_rank() == 0:
        source = dist.irecv(received)
        assert source is not None
        source.wait()
        assert source._source_rank() == 1
    else:
        dist.send(torch.ones(2), 0)


def dropped() -> None:
    """Send without holding the work: the memory stays valid all the same."""
    rank = dist.get_rank()
    if rank == 0:
        for index in range(20):
            dist.isend(torch.full((1 << 16,), float(index)), 1, tag=index)
        gc.collect()
        junk = [torch.full((1 << 16,), -1.0) for _ in range(20)]
        dist.barrier()
        del junk
    else:
        time.sleep(0.3)
        for index in range(20):
            received = torch.empty(1 << 16)
            dist.recv(received, 0, tag=index)
            assert bool((received == index).all()), index
        dist.barrier()


def failing() -> None:
    rank = dist.get_rank()
    work = start(torch.ones(64, dtype=torch.float64 if rank else torch.float32))
    future = work.get_future()
    following = future.then(lambda future: future.value()[0] * 2)
    for failed in (future, following):
        with pytest.raises(gradwire.GradwireError, match="float64"):
            failed.wait()
    with pytest.raises(gradwire.GradwireError, match="float64"):
        work.wait()
    assert work.is_completed()
    assert not work.is_success()
    assert isinstance(work.exception(), gradwire.GradwireError)


def failing_ddp(hooked: bool) -> str:
    """DDP's C++ reducer passes on what a future failed with."""
    rank = dist.get_rank()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    if hooked:
        model.register_comm_hook(None, hook)
    loss = model(torch.ones(2, 4)).sum()
    if rank == 1:
        dist.all_reduce(torch.ones(7, dtype=torch.int16), async_op=True)
    with pytest.raises(RuntimeError) as caught:
        loss.backward()
    return str(caught.value)


def hook(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()  # type: ignore[union-attr]
    return future.then(lambda future: future.value()[0])


# DDP compares the annotations with types, and they are text in this module.
hook.__annotations__ = {"bucket": dist.GradBucket, "return": torch.futures.Future[torch.Tensor]}


@pytest.mark.parametrize("size", [2, 4])
def test_callbacks_may_wait(size: int) -> None:
    run(nested, size)


@pytest.mark.parametrize("function", [two_callbacks, states, dropped, failing])
def test_works(function: Any) -> None:
    run(function, 2)


@pytest.mark.parametrize("hooked", [False, True])
def test_ddp_raises_what_went_wrong(hooked: bool) -> None:
    for message in run(failing_ddp, 2, hooked):
        assert "int16" in message, message
