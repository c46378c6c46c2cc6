"""Error feedback beside what training loops do: scaling, clipping, accumulating, skipping steps."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.compression.error_feedback import ErrorFeedback
from job import run
from test_compression import Network, batch, loss_of

CODECS: dict[str, dict[str, Any]] = {
    "int8": {"error_feedback": True},
    "int2": {},
    "top_k": {"density": 0.05},
    "random_k": {"density": 0.05},
    "power_sgd": {},
}


class Training:
    """A network whose embedding is tied and whose `spare` layer may go unused."""

    def __init__(self, parallel: bool, name: str, **changes: Any) -> None:
        self.network = Network()
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=0.1)
        changes = CODECS[name] | changes
        self.model: nn.Module = self.network
        self.no_sync: Callable[[], contextlib.AbstractContextManager[None]]
        if parallel:
            config = gradwire.CompressionConfig(codec=name, smallest=512, **changes)
            handle = gradwire.parallelize(
                self.network, self.optimizer, config, find_unused_parameters=True
            )
            self.state, self.no_sync = handle.compression, handle.no_sync
        else:
            model = DistributedDataParallel(
                self.network, bucket_cap_mb=0.05, find_unused_parameters=True
            )
            self.state, hook = gradwire.ddp_hook(name, smallest=512, **changes)
            model.register_comm_hook(self.state, hook)
            self.model, self.no_sync = model, model.no_sync

    def backward(
        self, step: int, scaler: Any = None, use_spare: bool = True, factor: float = 1.0
    ) -> None:
        loss = factor * loss_of(self.model, batch(step, dist.get_rank()), use_spare)
        (loss if scaler is None else scaler.scale(loss)).backward()

    def residuals(self) -> dict[str, Tensor]:
        """Return what this rank keeps back, by parameter."""
        self.state.state_dict(self.network)
        kept = self.state.feedback._kept
        named = self.network.named_parameters()
        return {name: kept[id(one)].values() for name, one in named if id(one) in kept}

    def gradients(self) -> dict[str, Tensor]:
        named = self.network.named_parameters()
        return {name: one.grad.clone() for name, one in named if one.grad is not None}


def nothing_is_lost(parallel: bool) -> None:
    """Check that what was given and what is kept back sum up to the true gradients.

    Over micro-batches, steps that leave a layer out, and clipping; the weights stay as they are.
    """
    for name in CODECS:
        training, plain = Training(parallel, name), Network()
        due: dict[str, Tensor] = {}
        for step in range(6):
            use_spare = step in (0, 3)
            training.optimizer.zero_grad()
            with training.no_sync():
                training.backward(step + 100, use_spare=use_spare)
            training.backward(step, use_spare=use_spare)
            add(due, training.gradients())
            nn.utils.clip_grad_norm_(training.network.parameters(), 1e-3)
            for micro in (step + 100, step):
                loss_of(plain, batch(micro, dist.get_rank()), use_spare).backward()
        assert "spare.weight" not in training.gradients()
        kept = training.residuals()
        assert {"embedding.weight", "spare.weight", "hidden.weight"} <= kept.keys(), name
        add(due, mean(kept))
        true = mean({key: one.grad for key, one in plain.named_parameters()})
        for key, gradient in true.items():
            error = float((due[key].view(-1) - gradient.view(-1)).norm() / gradient.norm())
            assert error < 0.03, (name, key, error)


def add(sums: dict[str, Tensor], tensors: dict[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        sums[name] = sums.get(name, torch.zeros(tensor.numel())) + tensor.view(-1)


def mean(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    means = {name: tensor.clone() for name, tensor in tensors.items()}
    for tensor in means.values():
        dist.all_reduce(tensor, dist.ReduceOp.AVG)
    return means


def loss_scales(parallel: bool) -> None:
    """Train with a scaler that skips steps and changes its scale, as without one."""
    for name in CODECS:
        weights = []
        for scaled in (False, True):
            scaler = torch.amp.GradScaler(
                "cpu", init_scale=2.0**16, growth_interval=2, enabled=scaled
            )
            training = Training(parallel, name, loss_scale=scaler.get_scale if scaled else None)
            # A step that is repeated is another one for random_k, which draws elements anew.
            overflowing = (2, 5) if scaled and name != "random_k" else ()
            for step in range(8):
                for factor in [torch.inf, 1.0] if step in overflowing else [1.0]:
                    before = scaler.get_scale()
                    training.optimizer.zero_grad()
                    training.backward(step, scaler, factor=factor)
                    scaler.unscale_(training.optimizer)
                    scaler.step(training.optimizer)
                    scaler.update()
                    assert (scaler.get_scale() < before) == (factor != 1.0)
            weights.append({key: one.clone() for key, one in training.network.state_dict().items()})
        for key, value in weights[0].items():
            assert torch.equal(weights[1][key], value), (name, key)


def residuals_are_in_units_of_the_loss_scale() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    training = Training(False, "top_k", loss_scale=scaler.get_scale)
    training.backward(0, scaler)
    before = training.residuals()
    scaler.update(256.0)
    for name, residual in training.residuals().items():
        torch.testing.assert_close(residual, before[name] / 4)


def decay_and_reset() -> None:
    kept = {}
    for decay in (1.0, 0.5, 0.0):
        training = Training(False, "top_k", residual_decay=decay)
        training.backward(0)
        kept[decay] = training.residuals()
        assert kept[decay]
        for name, residual in kept[decay].items():
            torch.testing.assert_close(residual, decay * kept[1.0][name])
    training = Training(False, "top_k", residual_reset=3)
    found = []
    for step in range(7):
        training.backward(step)
        found.append(bool(training.residuals()))
    assert found == [True, True, False, True, True, False, True]


def a_skipped_step_leaves_residuals_alone(parallel: bool) -> None:
    """Infinities of one rank are seen by all, whichever element they are in, and leave no trace."""
    for name in CODECS:
        training = Training(parallel, name)
        for step in range(3):
            training.optimizer.zero_grad()
            training.backward(step)
        before = training.state.state_dict(training.network)
        poisoned = training.network.hidden.weight
        for value in (torch.inf, torch.nan):

            def poison(gradient: Tensor, value: float = value) -> Tensor:
                gradient = gradient.clone()
                if dist.get_rank() == 1:
                    gradient.view(-1)[17] = value
                return gradient

            hook = poisoned.register_hook(poison)
            training.optimizer.zero_grad()
            training.backward(4)
            hook.remove()
            after = training.state.state_dict(training.network)
            assert not torch.isfinite(training.gradients()["hidden.weight"]).all(), (name, value)
            for key, kept in before["residuals"].items():
                assert torch.equal(kept["encoded"], after["residuals"][key]["encoded"]), (name, key)
        training.optimizer.zero_grad()
        training.backward(5)
        assert all(torch.isfinite(one).all() for one in training.gradients().values()), name
        assert all(torch.isfinite(one).all() for one in training.residuals().values()), name


@pytest.mark.parametrize("parallel", [False, True])
def test_nothing_is_lost(parallel: bool) -> None:
    run(nothing_is_lost, 2, parallel)


@pytest.mark.parametrize("parallel", [False, True])
def test_loss_scales(parallel: bool) -> None:
    run(loss_scales, 2, parallel)


def test_residuals_are_in_units_of_the_loss_scale() -> None:
    run(residuals_are_in_units_of_the_loss_scale, 2)


def test_decay_and_reset() -> None:
    run(decay_and_reset, 2)


@pytest.mark.parametrize("parallel", [False, True])
def test_a_skipped_step_leaves_residuals_alone(parallel: bool) -> None:
    run(a_skipped_step_leaves_residuals_alone, 2, parallel)


def test_a_residual_waits_while_its_parameter_has_no_gradient() -> None:
    feedback, parameter = ErrorFeedback(0.5), torch.zeros(256)
    feedback.keep(parameter, torch.full((256,), 2.0))
    assert feedback.end_step()
    gradient = torch.zeros(256)
    assert not feedback.add(parameter, gradient)
    assert not gradient.any()
    feedback.keep(parameter, torch.full((256,), 4.0))  # Of a sum that this rank has encoded.
    assert feedback.end_step()
    gradient = torch.ones(256)
    assert feedback.add(parameter, gradient)
    torch.testing.assert_close(gradient, torch.full((256,), 1.0 + 1.0 + 2.0), rtol=1e-2, atol=0)
