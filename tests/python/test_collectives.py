"""Every collective against its definition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from job import run

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int8,
    torch.uint8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.bool,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
]
OPERATORS: dict[str, Callable[[Tensor], Tensor]] = {
    "SUM": lambda stack: stack.sum(0),
    "PRODUCT": lambda stack: stack.prod(0),
    "MIN": lambda stack: stack.min(0).values,
    "MAX": lambda stack: stack.max(0).values,
}
BITWISE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "BAND": torch.bitwise_and,
    "BOR": torch.bitwise_or,
    "BXOR": torch.bitwise_xor,
}


def tensor_of(rank: int, dtype: torch.dtype, length: int) -> Tensor:
    """Return small whole numbers, so that every sum and product is exact."""
    values = (torch.arange(length) + rank) % 3
    return values.to(dtype)


def expected_reduction(stack: Tensor, operator: str) -> Tensor:
    """Reduce in a wide type."""
    if operator in BITWISE:
        result = stack[0]
        for other in stack[1:]:
            result = BITWISE[operator](result, other)
        return result
    wide = torch.float64 if stack.dtype.is_floating_point else torch.int64
    return OPERATORS[operator](stack.to(wide)).to(stack.dtype)


def same(left: Tensor, right: Tensor) -> bool:
    """Compare also types that torch can't compare."""
    return torch.equal(left.to(torch.float64), right.to(torch.float64))


def check_all_reduce() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    for dtype in DTYPES:
        operators = [*OPERATORS, *([] if dtype.is_floating_point else BITWISE)]
        for operator in operators:
            for length in (0, 1, 7, 1000):
                tensor = tensor_of(rank, dtype, length)
                stack = torch.stack([tensor_of(other, dtype, length) for other in range(size)])
                dist.all_reduce(tensor, getattr(dist.ReduceOp, operator))
                if length:
                    expected = expected_reduction(stack, operator)
                    assert same(tensor, expected), (dtype, operator, length)


def check_average() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
        tensor = torch.full((100,), float(rank * size), dtype=dtype)
        dist.all_reduce(tensor, dist.ReduceOp.AVG)
        assert same(tensor, torch.full((100,), size * (size - 1) / 2)), dtype


def check_complex() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    for dtype in (torch.complex64, torch.complex128):
        tensor = torch.full((5,), complex(1, rank), dtype=dtype)
        dist.all_reduce(tensor)
        assert torch.equal(tensor, torch.full((5,), complex(size, sum(range(size))), dtype=dtype))
        dist.reduce(tensor, 0)
        with pytest.raises((TypeError, ValueError)):
            dist.all_reduce(tensor, dist.ReduceOp.MAX)


def check_premultiplied_sum() -> None:
    size = dist.get_world_size()
    tensor = torch.ones(5)
    dist.all_reduce(tensor, dist._make_nccl_premul_sum(0.5))  # type: ignore[attr-defined]
    assert torch.equal(tensor, torch.full((5,), size / 2))
    input, output = torch.ones(size * 2), torch.empty(2)
    factor = dist._make_nccl_premul_sum(3.0)  # type: ignore[attr-defined]
    dist.reduce_scatter_tensor(output, input, factor)
    assert torch.equal(output, torch.full((2,), 3.0 * size))
    assert torch.equal(input, torch.ones(size * 2))


def check_not_contiguous() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    whole = torch.zeros(6, 8)
    view = whole[::2, 1::3].t()
    view.fill_(rank + 1)
    work = dist.all_reduce(view, async_op=True)
    assert work is not None
    work.wait()
    assert torch.equal(view, torch.full_like(view, size * (size + 1) / 2))
    assert whole.sum() == view.sum(), "memory beside the view was written"
    dist.broadcast(view, 1)
    pieces = [torch.zeros(3, 4).t() for _ in range(size)]
    dist.all_gather(pieces, torch.full((3, 4), float(rank)).t())
    assert all(bool((piece == other).all()) for other, piece in enumerate(pieces))


def check_movements() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    for dtype in [*DTYPES, torch.complex64, torch.uint16]:
        mine = torch.full((3,), rank % 2, dtype=dtype)
        pieces = [torch.empty_like(mine) for _ in range(size)]
        dist.all_gather(pieces, mine)
        whole = torch.empty(3 * size, dtype=dtype)
        dist.all_gather_into_tensor(whole, mine)
        assert torch.equal(torch.cat(pieces).view(torch.uint8), whole.view(torch.uint8)), dtype
        for other, piece in enumerate(pieces):
            expected = torch.full((3,), other % 2, dtype=dtype)
            assert torch.equal(piece.view(torch.uint8), expected.view(torch.uint8)), dtype
        for root in range(size):
            tensor = torch.full((3,), (rank == root) * 1, dtype=dtype)
            dist.broadcast(tensor, root)
            expected = torch.ones(3, dtype=dtype)
            assert torch.equal(tensor.view(torch.uint8), expected.view(torch.uint8)), dtype


def check_gather_and_scatter() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    for root in range(size):
        pieces = [torch.empty(4) for _ in range(size)] if rank == root else None
        dist.gather(torch.full((4,), float(rank)), pieces, dst=root)
        for other, piece in enumerate(pieces or []):
            assert torch.equal(piece, torch.full((4,), float(other)))
        given = [torch.full((2, 2), float(other)) for other in range(size)]
        output = torch.empty(2, 2)
        dist.scatter(output, given if rank == root else None, src=root)
        assert torch.equal(output, torch.full((2, 2), float(rank)))


def check_reduce_scatter() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    whole = torch.arange(size * 5.0)
    output = torch.empty(5)
    dist.reduce_scatter_tensor(output, whole)
    assert torch.equal(output, size * whole[rank * 5 : rank * 5 + 5])
    dist.reduce_scatter_tensor(output, whole, dist.ReduceOp.AVG)
    assert torch.equal(output, whole[rank * 5 : rank * 5 + 5])
    dist.reduce_scatter(output, list(whole.chunk(size)), dist.ReduceOp.MAX)
    assert torch.equal(output, whole[rank * 5 : rank * 5 + 5])
    tensor = torch.ones(5) * (rank + 1)
    dist.reduce(tensor, size - 1)
    if rank == size - 1:
        assert torch.equal(tensor, torch.ones(5) * size * (size + 1) / 2)


def check_all_to_all() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    given = torch.arange(size * 2) + 100 * rank
    output = torch.empty_like(given)
    dist.all_to_all_single(output, given)
    expected = torch.cat([torch.arange(2) + 2 * rank + 100 * other for other in range(size)])
    assert torch.equal(output, expected)
    # Rank i sends i + j rows to rank j; rank 0 sends nothing to itself.
    sent = [rank + other for other in range(size)]
    rows = torch.full((sum(sent), 3), float(rank))
    received = torch.empty(sum(sent), 3)
    dist.all_to_all_single(received, rows, sent, sent)
    expected = torch.cat([torch.full((rank + other, 3), float(other)) for other in range(size)])
    assert torch.equal(received, expected)
    outputs = [torch.empty(rank + other) for other in range(size)]
    dist.all_to_all(outputs, [torch.full((rank + other,), float(rank)) for other in range(size)])
    assert all(bool((tensor == other).all()) for other, tensor in enumerate(outputs))


def check_objects() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    gathered: list[Any] = [None] * size
    dist.all_gather_object(gathered, {"rank": rank, "text": "x" * rank})
    assert gathered == [{"rank": other, "text": "x" * other} for other in range(size)]
    objects = [rank, "hello"] if rank == 0 else [None, None]
    dist.broadcast_object_list(objects, src=0)
    assert objects == [0, "hello"]
    mine: list[Any] = [None]
    dist.scatter_object_list(mine, list(range(size)) if rank == 0 else None, src=0)
    assert mine == [rank]


def check_sparse() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    # Rank r has r entries, so the ranks differ in their number; one is on all ranks.
    indices = torch.tensor([[0, *range(1, rank + 1)]])
    tensor = torch.sparse_coo_tensor(indices, torch.ones(rank + 1), (size + 1,))
    dist.all_reduce(tensor)
    expected = torch.tensor([float(size), *range(size - 1, -1, -1)])
    assert torch.equal(tensor.to_dense(), expected)


def check_point_to_point() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    received = torch.empty(4)
    following, previous = (rank + 1) % size, (rank - 1) % size
    operations = [
        dist.P2POp(dist.isend, torch.full((4,), float(rank)), following),
        dist.P2POp(dist.irecv, received, previous),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    assert torch.equal(received, torch.full((4,), float(previous)))
    if rank == 0:
        # Tags are received in the other order.
        for tag in (1, 2):
            dist.send(torch.tensor([float(tag)]), 1, tag=tag)
    elif rank == 1:
        for tag in (2, 1):
            assert dist.recv(received[:1], 0, tag=tag) == 0
            assert received[0] == tag


def check_any_source() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    if rank > 0:
        dist.send(torch.tensor([float(rank)]), 0, tag=7)
        return
    sources = set()
    for _ in range(1, size):
        received = torch.empty(1)
        source = dist.recv(received, tag=7)
        assert received[0] == source
        sources.add(source)
    assert sources == set(range(1, size))


def check_coalescing() -> None:
    size = dist.get_world_size()
    first, second = torch.ones(3), torch.ones(5)
    with dist._coalescing_manager():
        dist.all_reduce(first)
        dist.all_reduce(second)
    assert first[0] == size
    assert second[4] == size
    whole = [torch.empty(size * length) for length in (2, 3)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for output, length in zip(whole, (2, 3), strict=True):
            dist.all_gather_into_tensor(output, torch.ones(length))
    manager.wait()
    assert all(bool((tensor == 1).all()) for tensor in whole)
    with dist._coalescing_manager(device=torch.device("cpu"), async_ops=True) as manager:
        dist.broadcast(first, 0)
        dist.broadcast(second, 0)
    manager.wait()


def check_refusals() -> None:
    size = dist.get_world_size()
    with pytest.raises(ValueError, match="does not apply to float32"):
        dist.all_reduce(torch.ones(2), dist.ReduceOp.BAND)
    with pytest.raises(TypeError, match=r"can't reduce tensors of torch\.uint16"):
        dist.all_reduce(torch.ones(2, dtype=torch.uint16))
    with pytest.raises(ValueError, match="elements are not"):
        dist.all_gather_into_tensor(torch.empty(2 * size + 1), torch.ones(2))
    with pytest.raises(ValueError, match="pass one for each rank"):
        dist.all_gather([torch.empty(2)] * (size + 1), torch.ones(2))
    with pytest.raises(ValueError, match="split sizes"):
        dist.all_to_all_single(torch.empty(size), torch.ones(size), [1] * size, [2] * size)
    dist.barrier()  # The group is still in order.


CHECKS = [value for name, value in dict(globals()).items() if name.startswith("check_")]
NEED_A_PEER = {"check_not_contiguous", "check_point_to_point"}


def run_checks(size: int) -> None:
    for check in CHECKS:
        if size > 1 or check.__name__ not in NEED_A_PEER:
            check()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__[len("check_") :])
def test_with_three_ranks(check: Callable[[], None]) -> None:
    run(check, 3)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_everything_in_one_job(size: int) -> None:
    run(run_checks, size, size)
