"""The adaptive controller while training: what it measures, what it does about surprises."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.compression.controller import ALARM_STEPS, FIRST_PLAN, INTERVALS, Controller
from gradwire.compression.planning import NONE, Costs, choose
from gradwire.compression.state import CompressionState
from gradwire.compression.watching import COMPARED_STEPS, LinkWatch
from job import run

SECOND_PLAN = FIRST_PLAN + INTERVALS[0]


class Network(nn.Module):
    """An embedding that is wider than tall, a square matrix, and one that is taller than wide."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens = nn.Embedding(32, 64)
        self.square = nn.Linear(64, 64)
        self.tall = nn.Linear(64, 1024)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.tall(torch.tanh(self.square(self.tokens(tokens))))


@contextlib.contextmanager
def a_slow_link() -> Iterator[None]:
    """Let plans believe that the wire is slow, so that compression pays."""

    def slower(tensors: Any, ready: Any, fixed: Any, costs: Costs, *rest: Any) -> Any:
        return choose(tensors, ready, fixed, replace(costs, seconds_per_byte=1e-4), *rest)

    with mock.patch("gradwire.compression.controller.choose", slower):
        yield


class Job:
    """A model in training with the adaptive hook."""

    def __init__(self, **changes: Any) -> None:
        self.network = Network()
        self.model = DistributedDataParallel(self.network)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        hook = gradwire.ddp_hook(module=self.network, tolerance=0.01, smallest=256, **changes)
        self.state: CompressionState = hook[0]
        self.model.register_comm_hook(*hook)
        self.step = 0

    def train(self, steps: int, scale: float = 1.0) -> None:
        for _ in range(steps):
            seed = 100 * self.step + dist.get_rank()
            tokens = torch.randint(32, (64,), generator=torch.Generator().manual_seed(seed))
            self.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(self.model(tokens), tokens)
            (scale * loss).backward()  # type: ignore[no-untyped-call]
            if scale == 1.0:
                self.optimizer.step()
            self.step += 1

    @property
    def controller(self) -> Controller:
        assert self.state.controller is not None
        return self.state.controller

    def codecs(self) -> list[str]:
        """Return how the parameters' gradients travel in the next step."""
        self.state.begin_step()  # The hook's first bucket would; the step in between is empty.
        return [self.controller.codec(parameter) for parameter in self.network.parameters()]


def says_what_it_chose_and_what_came_of_it() -> str:
    with a_slow_link():
        job = Job()
        job.train(SECOND_PLAN + 1)
        tokens, square, _, tall, _ = job.codecs()
    assert tokens == "int8", "an embedding's bits"
    assert NONE not in (square, tall)
    table = job.state.decisions()
    rows = {line.split()[0]: line.split() for line in table.splitlines()[3:]}
    assert list(rows) == ["tokens.weight", "square.weight", "tall.weight"]
    for _, _, codec, saved, predicted, *measured in rows.values():
        assert float(saved) > 0
        assert len(measured) == 1, f"{codec} has travelled uncompressed as well: {table}"
        assert 0.2 < float(measured[0]) / float(predicted) < 5, table
    return table


def bits_can_be_told() -> None:
    with a_slow_link():
        job = Job(one_dimensional=True, embedding_bits=0)
        job.train(FIRST_PLAN + 1)
        tokens, _, square_bias, _, tall_bias = job.codecs()
    assert tokens not in (NONE, "int8")
    assert square_bias == NONE, "too small"
    assert tall_bias != NONE


def surprises_raise_precision_at_once() -> None:
    with a_slow_link():
        job = Job(error_feedback=True)
        job.train(FIRST_PLAN + 1)
        assert set(job.codecs()) != {NONE}
        assert job.state.feedback.norm() > 0
        for surprise in (1e4, float("inf")):
            job.train(1, scale=surprise)
            assert set(job.codecs()) == {NONE}, surprise
            job.train(1)
            job.codecs()
            assert job.state.feedback.norm() == 0, "what was kept back is given"
            job.train(ALARM_STEPS)
            assert set(job.codecs()) != {NONE}, "there is a new plan"
        if dist.get_rank() == 1:
            job.state.feedback._squares[0] = 1e12
        job.train(2)
        assert set(job.codecs()) == {NONE}, "one rank keeps too much back"


def one_rank_that_sees_another_link_makes_all_plan() -> int:
    with a_slow_link():
        job = Job()
        job.train(FIRST_PLAN + 1)
        job.codecs()
        if dist.get_rank() == 1:
            for seconds in COMPARED_STEPS * [1.0] + COMPARED_STEPS * [3.0]:
                job.controller._link.note(seconds)
        assert job.controller._plans == 1
        job.train(1)
        if dist.get_rank() == 0:
            job.controller._link.restart()
        job.train(2)
        job.codecs()
        assert job.controller._plans == 2
    return job.controller._planned_step


def test_says_what_it_chose_and_what_came_of_it() -> None:
    tables = run(says_what_it_chose_and_what_came_of_it, 2)
    assert tables[0] == tables[1]


def test_bits_can_be_told() -> None:
    run(bits_can_be_told, 2)


def test_surprises_raise_precision_at_once() -> None:
    run(surprises_raise_precision_at_once, 2)


def test_one_rank_that_sees_another_link_makes_all_plan() -> None:
    steps = run(one_rank_that_sees_another_link_makes_all_plan, 2)
    assert steps[0] == steps[1]


def test_a_link_is_another_one_when_it_stays_much_faster_or_slower() -> None:
    for factor, changed in ((1.5, False), (0.6, False), (2.5, True), (0.3, True)):
        watch = LinkWatch()
        for seconds in (1.0, 1.1, 0.9, 5.0, 1.0, 1.0):
            assert not watch.has_changed
            watch.note(seconds)
        assert not watch.has_changed, "one slow step is none"
        for _ in range(COMPARED_STEPS):
            watch.note(factor)
        assert watch.has_changed is changed
        watch.restart()
        assert not watch.has_changed
