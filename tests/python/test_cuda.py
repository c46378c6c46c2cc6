"""Tensors on a CUDA device, which travel through pinned host memory."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import gradwire
from job import run

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA device, and this machine has none"
)

ELEMENTS = 1 << 20
STEPS = 8


def device() -> torch.device:
    """Return this rank's device; ranks share one where there are not enough."""
    chosen = torch.device("cuda", dist.get_rank() % torch.cuda.device_count())
    torch.cuda.set_device(chosen)
    return chosen


def values(rank: int) -> Tensor:
    return torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(rank))


def slow_product(place: torch.device) -> Tensor:
    """Return ones that the device has only after a while: who reads too early finds others."""
    factor = torch.eye(2048, device=place)
    product = torch.full((2048, 2048), 1.0, device=place)
    for _ in range(20):
        product = product @ factor
    return product


def reduce() -> None:
    place, size = device(), dist.get_world_size()
    total = torch.stack([values(rank) for rank in range(size)]).sum(0)
    tensor = values(dist.get_rank()).to(place)
    dist.all_reduce(tensor)
    doubled = 2 * tensor  # On the current stream, which has to wait for the copy back.
    torch.testing.assert_close(doubled.cpu(), 2 * total)

    late = slow_product(place)
    work = dist.all_reduce(late, async_op=True)
    assert work is not None
    work.wait()
    assert torch.equal(late.cpu(), torch.full((2048, 2048), float(size)))

    strided = values(dist.get_rank()).view(1024, 1024).to(place).t()
    dist.all_reduce(strided)
    torch.testing.assert_close(strided.cpu(), total.view(1024, 1024).t())

    encoded, error = values(dist.get_rank()).to(place), torch.empty(ELEMENTS)
    gradwire.all_reduce(encoded, dist.ReduceOp.AVG, codec="int8", error=error)
    kept = values(dist.get_rank()) - error
    dist.all_reduce(kept, dist.ReduceOp.AVG)
    torch.testing.assert_close(encoded.cpu(), kept, rtol=0, atol=1e-5)
    assert error.norm() > 0


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens = nn.Embedding(32, 64)
        self.hidden = nn.Linear(64, 256)
        self.output = nn.Linear(256, 32)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.output(torch.tanh(self.hidden(self.tokens(tokens))))
        return logits


def step(model: nn.Module, number: int, place: torch.device) -> Tensor:
    seed = 100 * number + dist.get_rank()
    tokens = torch.randint(32, (64,), generator=torch.Generator().manual_seed(seed)).to(place)
    return functional.cross_entropy(model(tokens), tokens)


def trained(place: torch.device, codec: str, parallel: bool) -> dict[str, Tensor]:
    """Train, and return weights that are the same on all ranks, on the host."""
    network = Model().to(place)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.5)
    config = gradwire.CompressionConfig(codec=codec, error_feedback=codec != "none")
    model: nn.Module = network
    if parallel:
        handle = gradwire.parallelize(network, optimizer, config)
        state = handle.compression
    else:
        model = DistributedDataParallel(network)
        state, hook = gradwire.ddp_hook(config)
        model.register_comm_hook(state, hook)
    losses = []
    for number in range(STEPS):
        optimizer.zero_grad()
        loss = step(model, number, place)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(float(loss))
    assert losses[-1] < losses[0]
    assert bool(state.state_dict(network)["residuals"]) == (codec != "none")
    weights = {name: one.detach().cpu() for name, one in network.named_parameters()}
    for weight in weights.values():
        everyone = [torch.empty_like(weight) for _ in range(dist.get_world_size())]
        dist.all_gather(everyone, weight)
        assert all(torch.equal(other, weight) for other in everyone)
    return weights


def train(codec: str) -> None:
    place = device()
    expected = trained(torch.device("cpu"), codec, parallel=False)
    for parallel in (False, True):
        for name, weight in trained(place, codec, parallel).items():
            # A rounding difference may become another code of int8, a 127th of its block's largest.
            tolerance = 1e-4 if codec == "none" else 1e-2
            torch.testing.assert_close(weight, expected[name], rtol=tolerance, atol=tolerance)


def test_all_reduce() -> None:
    run(reduce, 2, seconds=120)


@pytest.mark.parametrize("codec", ["none", "int8"])
def test_training(codec: str) -> None:
    run(train, 2, codec, seconds=120)
