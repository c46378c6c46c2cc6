"""Checkpoints of compressed training: a resumed run is the uninterrupted one, bit for bit."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.compression.controller import FIRST_PLAN
from gradwire.compression.error_feedback import ErrorFeedback
from job import run
from test_compression import Network, batch, loss_of, train
from test_controller import a_slow_link

HOOKS: dict[str, dict[str, Any]] = {
    "int8": {"error_feedback": True, "residual_decay": 0.9},
    "int2": {"residual_reset": 4},
    "top_k": {"density": 0.05},
    "random_k": {"density": 0.05},
    "power_sgd": {"first_step": 2},
}


def written_and_read(state: Any) -> Any:
    """Return a state as a checkpoint gives it back: tensors and plain values, and nothing live."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def on_all_ranks(state: Any) -> list[Any]:
    states: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(states, state)
    return states


class UnderDdp:
    """The network in training with DDP's hook, with or without parameters that go unused."""

    model: nn.Module
    optimizer: torch.optim.Optimizer

    def __init__(self, name: str, finds_unused: bool, **changes: Any) -> None:
        self.module = Network()
        if not finds_unused:  # DDP divides into other buckets after the first step, then.
            del self.module.spare
        self.model = DistributedDataParallel(
            self.module, bucket_cap_mb=0.05, find_unused_parameters=finds_unused
        )
        self.uses_spare = finds_unused
        self.state, hook = gradwire.ddp_hook(name, smallest=512, **changes)
        self.model.register_comm_hook(self.state, hook)
        self.optimizer = torch.optim.SGD(self.module.parameters(), lr=0.1, momentum=0.9)

    def train(self, steps: range) -> list[float]:
        if self.uses_spare:
            return train(self.model, self.optimizer, steps)
        losses = []
        for step in steps:
            self.optimizer.zero_grad()
            loss = loss_of(self.model, batch(step, dist.get_rank()), False)
            loss.backward()
            self.optimizer.step()
            losses.append(float(loss.detach()))
        return losses

    def checkpoint(self) -> Any:
        parts = self.module.state_dict(), self.optimizer.state_dict()
        return written_and_read((*parts, self.state.state_dict(self.module)))

    def load(self, checkpoint: Any) -> None:
        weights, moments, compression = checkpoint
        self.module.load_state_dict(weights)
        self.optimizer.load_state_dict(moments)
        self.state.load_state_dict(compression, self.module)


class UnderParallelize(UnderDdp):
    """The same under `parallelize`."""

    def __init__(self, name: str, finds_unused: bool, **changes: Any) -> None:
        self.module = Network()
        del self.module.spare
        self.model = self.module
        self.uses_spare = False
        self.optimizer = torch.optim.SGD(self.module.parameters(), lr=0.1, momentum=0.9)
        config = gradwire.CompressionConfig(codec=name, smallest=512, **changes)
        self.parallel = gradwire.parallelize(self.module, self.optimizer, config)
        self.state = self.parallel.compression


def resume(kind: type[UnderDdp], finds_unused: bool, name: str) -> None:
    changes = HOOKS[name]
    whole = kind(name, finds_unused, **changes)
    whole.train(range(6))
    saved = whole.checkpoint()
    assert saved[2]["residuals"], "something is left behind"
    expected = whole.train(range(6, 11))
    resumed = kind(name, finds_unused, **changes)
    resumed.load(saved)
    assert resumed.train(range(6, 11)) == expected, name
    weights = whole.module.state_dict()
    for key, value in resumed.module.state_dict().items():
        assert torch.equal(value, weights[key]), (name, key)
    assert_same(resumed.state.state_dict(resumed.module), whole.state.state_dict(whole.module))


def assert_same(one: Any, other: Any) -> None:
    if isinstance(one, Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key, value in one.items():
            assert_same(value, other[key])
    elif isinstance(one, (list, tuple)):
        for pair in zip(one, other, strict=True):
            assert_same(*pair)
    else:
        assert one == other


def every_hook(kind: type[UnderDdp], finds_unused: bool) -> None:
    for name in HOOKS:
        resume(kind, finds_unused, name)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("finds_unused", [True, False])
def test_ddp(finds_unused: bool, size: int) -> None:
    run(every_hook, size, UnderDdp, finds_unused)


def test_parallelize() -> None:
    run(every_hook, 2, UnderParallelize, False)


class UnderOneBitAdam(UnderDdp):
    """The same under 1-bit Adam, which communicates itself."""

    def __init__(self, *_: Any) -> None:
        self.module = Network()
        del self.module.spare
        self.model = self.module
        self.uses_spare = False
        self.optimizer = gradwire.OneBitAdam(self.module.parameters(), lr=5e-3, warm_up_steps=3)

    def checkpoint(self) -> Any:
        return written_and_read((self.module.state_dict(), self.optimizer.state_dict()))

    def load(self, checkpoint: Any) -> None:
        weights, moments = checkpoint
        self.module.load_state_dict(weights)
        self.optimizer.load_state_dict(moments)


def one_bit_adam() -> None:
    whole = UnderOneBitAdam()
    whole.train(range(6))
    saved = whole.checkpoint()
    assert saved[1]["feedback"]["residuals"]
    expected = whole.train(range(6, 11))
    for given in (saved, (saved[0], on_all_ranks(saved[1]))):
        resumed = UnderOneBitAdam()
        resumed.load(given)
        assert resumed.train(range(6, 11)) == expected
        assert_same(resumed.checkpoint(), whole.checkpoint())
    foreign = on_all_ranks(saved[1])[1 - dist.get_rank()]
    resumed = UnderOneBitAdam()
    with pytest.warns(UserWarning, match="residuals are dropped"):
        resumed.load((saved[0], foreign))
    assert not resumed.optimizer.state_dict()["feedback"]["residuals"]
    resumed.train(range(6, 7))


def adaptive(resized: bool) -> str:
    with a_slow_link():
        whole = UnderDdp("adaptive", False, tolerance=0.05, error_feedback=True)
        whole.train(range(FIRST_PLAN + 3))
        saved = whole.checkpoint()
        state = saved[2]
        assert state["residuals"]
        assert set(state["controller"]["plan"]["codecs"].values()) != {"none"}
        resumed = UnderDdp("adaptive", False, tolerance=0.05, error_feedback=True)
        states = on_all_ranks(state)
        if resized:  # As if there had been twice as many ranks.
            states = [{**one, "rank": r, "ranks": 4} for r, one in enumerate(2 * states)]
        resumed.load((*saved[:2], states))
        steps = range(FIRST_PLAN + 3, FIRST_PLAN + 7)
        if resized:
            assert "no plan" in resumed.state.decisions()
        else:
            assert resumed.state.decisions() == whole.state.decisions()
            assert resumed.train(steps) == whole.train(steps), "there is no new plan in these steps"
        resumed.train(steps)
        assert "plan" in resumed.state.decisions()
        chosen = resumed.checkpoint()[2]["controller"]["plan"]["codecs"]
    return str(sorted(chosen.items()))


def another_number_of_ranks() -> None:
    """Keep the sum of what is due; and say so where that can't be."""
    rank, size = dist.get_rank(), dist.get_world_size()
    whole = UnderDdp("top_k", False, density=0.05)
    whole.train(range(4))
    saved = whole.checkpoint()[2]
    own = ErrorFeedback()
    parameters = list(whole.module.named_parameters())
    own.load_state_dict(on_all_ranks(saved), rank, size, parameters)
    states = [{**one, "rank": r, "ranks": 4} for r, one in enumerate(2 * on_all_ranks(saved))]
    whole.state.load_state_dict(states, whole.module)
    for name, parameter in parameters:
        if name not in saved["residuals"]:
            continue
        before, after = torch.ones(parameter.numel()), torch.ones(parameter.numel())
        assert own.add(parameter, before) and whole.state.feedback.add(parameter, after)
        dist.all_reduce(before, dist.ReduceOp.AVG)
        dist.all_reduce(after, dist.ReduceOp.AVG)
        torch.testing.assert_close(after, before, rtol=0.05, atol=1e-2 * float(before.abs().max()))
    others = [state for state in states if state["rank"] != rank]
    for wrong in (others[0], others, states[::-1]):
        with pytest.raises(ValueError, match="rank"):
            whole.state.load_state_dict(wrong, whole.module)
    with pytest.raises(ValueError, match=r"no parameter 'back.weight'.*same model"):
        whole.state.load_state_dict(saved, whole.model)


def test_one_bit_adam() -> None:
    run(one_bit_adam, 2)


@pytest.mark.parametrize("resized", [False, True])
def test_adaptive_goes_on_with_the_plan_in_force(resized: bool) -> None:
    chosen = run(adaptive, 2, resized)
    assert chosen[0] == chosen[1]


def test_another_number_of_ranks() -> None:
    run(another_number_of_ranks, 2)
