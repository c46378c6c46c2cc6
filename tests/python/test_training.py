"""What people run on a process group: DDP with hooks, FSDP2, HSDP, DTensor, compiled functions."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power_sgd
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from job import run

STEPS = 4


def model_of(layers: int = 4) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(16, 16) for _ in range(layers)))


def batches(size: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(4 * size, 16, generator=generator) for _ in range(STEPS)]


def train(model: nn.Module, size: int, rank: int | None) -> None:
    """Train on this rank's part of each batch, on all of it if `rank` is `None`."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in batches(size):
        part = batch if rank is None else batch[4 * rank : 4 * rank + 4]
        optimizer.zero_grad()
        model(part).square().mean().backward()
        optimizer.step()


def expected_weights(size: int) -> list[Tensor]:
    model = model_of()
    train(model, size, None)
    return [parameter.detach() for parameter in model.parameters()]


def assert_close(weights: list[Tensor], tolerance: float = 1e-5) -> None:
    for weight, expected in zip(weights, expected_weights(dist.get_world_size()), strict=True):
        torch.testing.assert_close(weight, expected, rtol=tolerance, atol=tolerance)


def assert_same_on_all_ranks(weights: list[Tensor]) -> None:
    for weight in weights:
        others = [torch.empty_like(weight) for _ in range(dist.get_world_size())]
        dist.all_gather(others, weight)
        assert all(torch.equal(other, weight) for other in others)


def ddp() -> None:
    model = DistributedDataParallel(model_of())
    train(model, dist.get_world_size(), dist.get_rank())
    weights = [parameter.detach() for parameter in model.parameters()]
    assert_close(weights)
    assert_same_on_all_ranks(weights)


def hooks() -> None:
    """Many small buckets: a bucket for each parameter."""
    size, rank = dist.get_world_size(), dist.get_rank()
    orthogonalize = power_sgd._orthogonalize

    def orthogonalize_any(matrices: Tensor, epsilon: float = 0) -> None:
        # torch 2.8 to 2.15 pass a single matrix here where a batch is asked for.
        orthogonalize(matrices if matrices.dim() == 3 else matrices.unsqueeze(0), epsilon)

    def state() -> power_sgd.PowerSGDState:
        return power_sgd.PowerSGDState(None, start_powerSGD_iter=2, matrix_approximation_rank=2)

    chosen: list[tuple[Any, Any]] = [
        (None, default_hooks.allreduce_hook),
        (None, default_hooks.fp16_compress_hook),
        (None, default_hooks.bf16_compress_hook),
        (state(), power_sgd.powerSGD_hook),
        (state(), power_sgd.batched_powerSGD_hook),
    ]
    for hook_state, hook in chosen:
        model = DistributedDataParallel(model_of(12), bucket_cap_mb=1e-4)
        model.register_comm_hook(hook_state, hook)
        with mock.patch.object(power_sgd, "_orthogonalize", orthogonalize_any):
            train(model, size, rank)
        assert_same_on_all_ranks([parameter.detach() for parameter in model.parameters()])


def fsdp() -> None:
    size, rank = dist.get_world_size(), dist.get_rank()
    meshes = [init_device_mesh("cpu", (size,))]
    if size == 4:
        meshes.append(init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard")))
    for mesh in meshes:
        model = model_of()
        for layer in model:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        train(model, size, rank)
        assert_close([parameter.full_tensor() for parameter in model.parameters()])  # type: ignore[attr-defined]


def dtensor() -> None:
    size, rank = dist.get_world_size(), dist.get_rank()
    mesh = init_device_mesh("cpu", (size,))
    whole = torch.arange(2.0 * size * size).view(size, 2 * size)
    rows = distribute_tensor(whole, mesh, [Shard(0)])
    assert torch.equal(rows.redistribute(mesh, [Replicate()]).to_local(), whole)
    assert torch.equal(rows.full_tensor(), whole)
    columns = rows.redistribute(mesh, [Shard(1)]).to_local()
    assert torch.equal(columns, whole.chunk(size, 1)[rank])
    assert float(rows.sum().full_tensor()) == float(whole.sum())


def functional_collectives() -> None:
    size, rank, world = dist.get_world_size(), dist.get_rank(), dist.group.WORLD
    assert world is not None
    assert functional.all_reduce(torch.ones(3), "sum", world)[0] == size
    assert functional.all_gather_tensor(torch.ones(2) * rank, 0, world)[-1] == size - 1
    assert functional.reduce_scatter_tensor(torch.ones(2 * size), "avg", 0, world)[0] == 1
    rows = functional.all_to_all_single(torch.arange(size) + 10.0 * rank, None, None, world)
    assert rows[1] == 10 + rank
    assert functional.broadcast(torch.ones(2) * rank, 1, world)[0] == 1
    several = functional.all_reduce_coalesced([torch.ones(3), torch.ones(2)], "sum", world)
    assert several[1][0] == size
    gathered = functional.all_gather_into_tensor_coalesced([torch.ones(3), torch.ones(2)], world)
    assert gathered[1].shape == (2 * size,)
    scattered = functional.reduce_scatter_tensor_coalesced(
        [torch.ones(size), torch.ones(2 * size)], "sum", [0, 0], world
    )
    assert scattered[1][0] == size

    def computed(tensor: Tensor) -> Tensor:
        return functional.all_reduce(tensor * 2, "sum", world) + 1

    compiled = torch.compile(computed, backend="aot_eager", fullgraph=True)
    assert compiled(torch.ones(3))[0] == 2 * size + 1


def compiled_ddp() -> None:
    model = torch.compile(DistributedDataParallel(model_of()), backend="aot_eager")
    train(model, dist.get_world_size(), dist.get_rank())
    assert_close([parameter.detach() for parameter in model.parameters()])


def everything() -> None:
    for check in (ddp, hooks, fsdp, dtensor):
        check()


@pytest.mark.parametrize("size", [2, 4])
def test_training(size: int) -> None:
    run(everything, size, seconds=120)


@pytest.mark.parametrize("function", [functional_collectives, compiled_ddp])
def test_compiling(function: Any) -> None:
    run(function, 2, seconds=120)
