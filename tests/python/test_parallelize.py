"""`gradwire.parallelize`: the same training as plain DDP, with its communication out of the way."""

from __future__ import annotations

import copy
import importlib
import io
import itertools
import os
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

import gradwire
from gradwire.compression.planning import exposed_seconds
from gradwire.parallel.layout import Member, divide, priority
from gradwire.parallel.link import LinkModel
from job import join, run

parallelize_module = importlib.import_module("gradwire.parallel.parallelize")

STEPS = 5
BATCH = 4


class Tied(nn.Module):
    """A language model in small: tied embedding, norms, a bias-free and an unused-at-times part."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(32, 48)
        self.blocks = nn.Sequential(
            *(
                nn.Sequential(nn.LayerNorm(48), nn.Linear(48, 192), nn.GELU(), nn.Linear(192, 48))
                for _ in range(3)
            )
        )
        self.scale = nn.Parameter(torch.ones(48))

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.tokens(inputs)
        for block in self.blocks:
            hidden = hidden + block(hidden)
        return functional.linear(hidden * self.scale, self.tokens.weight)


def model_of(kind: Callable[[], nn.Module] = Tied) -> Any:
    torch.manual_seed(dist.get_rank())  # Ranks differ until somebody makes them alike.
    return kind()


def loss_of(model: nn.Module, step: int, part: int = 0) -> Any:
    generator = torch.Generator().manual_seed(1000 * step + 10 * dist.get_rank() + part)
    inputs = torch.randint(32, (BATCH, 9), generator=generator)
    logits = model(inputs[:, :-1])
    return functional.cross_entropy(logits.flatten(0, 1), inputs[:, 1:].flatten())


def adamw(model: nn.Module) -> Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)


def plain_ddp(
    model: nn.Module, optimizer: Optimizer, train: Callable[..., None], **kept: Any
) -> None:
    """Train under DDP, with averages taken like gradwire takes them."""
    ddp = DistributedDataParallel(model, **kept)
    ddp.register_comm_hook(*gradwire.ddp_hook("none"))
    train(ddp, optimizer, ddp.no_sync, nn.utils.clip_grad_norm_)


def hidden(model: nn.Module, optimizer: Optimizer, train: Callable[..., None], **kept: Any) -> None:
    parallel = gradwire.parallelize(model, optimizer, **kept)
    train(model, optimizer, parallel.no_sync, nn.utils.clip_grad_norm_)
    parallel.leave()


def plainly(model: nn.Module, optimizer: Optimizer, *_: Any) -> None:
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()


def zeroing_afterwards(model: nn.Module, optimizer: Optimizer, *_: Any) -> None:
    for step in range(STEPS):
        loss_of(model, step).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)


def accumulating(model: nn.Module, optimizer: Optimizer, no_sync: Any, _: Any) -> None:
    for step in range(STEPS):
        with no_sync():
            loss_of(model, step, 1).backward()
        loss_of(model, step, 2).backward()
        optimizer.step()
        optimizer.zero_grad()


def synchronizing_twice(model: nn.Module, optimizer: Optimizer, *_: Any) -> None:
    for step in range(STEPS):
        loss_of(model, step, 1).backward()
        loss_of(model, step, 2).backward()
        optimizer.step()
        optimizer.zero_grad()


def clipping(model: nn.Module, optimizer: Optimizer, _: Any, clip: Any) -> None:
    for step in range(STEPS):
        loss_of(model, step).backward()
        clip(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()


def scheduling(model: nn.Module, optimizer: Optimizer, *_: Any) -> None:
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=STEPS + 1)
    for step in range(STEPS):
        loss_of(model, step).backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()


def scaling(model: nn.Module, optimizer: Optimizer, *_: Any) -> None:
    """Automatic mixed precision; the first steps overflow and are skipped."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**126, growth_interval=2)
    for step in range(STEPS + 3):
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(model, step)
        scaler.scale(loss).backward()
        if step % 2:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


def evaluating(model: nn.Module, optimizer: Optimizer, *_: Any) -> None:
    for step in range(STEPS):
        loss_of(model, step).backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.inference_mode():
            model.eval()
            loss_of(model, step)
            model.train()


LOOPS = [
    plainly,
    zeroing_afterwards,
    accumulating,
    synchronizing_twice,
    clipping,
    scheduling,
    scaling,
    evaluating,
]


def groups_of(model: nn.Module) -> Optimizer:
    matrices = [one for one in model.parameters() if one.dim() > 1]
    vectors = [one for one in model.parameters() if one.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "lr": 0.003}]
    return torch.optim.AdamW(groups, lr=0.01)


OPTIMIZERS: list[Callable[[nn.Module], Optimizer]] = [
    adamw,
    groups_of,
    lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True),
    lambda model: torch.optim.Adagrad(model.parameters(), lr=0.05),
]


def same_bits() -> None:
    for train in LOOPS:
        compare(adamw, train)
    for optimizer in OPTIMIZERS[1:]:
        compare(optimizer, plainly)


def compare(optimizer_of: Callable[[nn.Module], Optimizer], train: Callable[..., None]) -> None:
    weights = []
    for way in (plain_ddp, hidden):
        model = model_of()
        optimizer = optimizer_of(model)
        way(model, optimizer, train)
        weights.append(model.state_dict())
        weights.append(flat(optimizer.state_dict()))
    for name in weights[0]:
        assert torch.equal(weights[0][name], weights[2][name]), (train.__name__, name)
    assert weights[1].keys() == weights[3].keys()
    for name, value in weights[1].items():
        assert torch.equal(value, weights[3][name]), (train.__name__, name)


def flat(state: dict[str, Any]) -> dict[str, Tensor]:
    return {
        f"{number} {name}": value
        for number, one in state["state"].items()
        for name, value in one.items()
        if isinstance(value, Tensor)
    }


def same_bits_in_one_order(store: str, rank: int, size: int) -> None:
    """Sum in rank order, wherever an element lies in a bucket."""
    join(store, rank, size, algorithm="star")
    same_bits()


def test_training_is_that_of_ddp_bit_for_bit() -> None:
    run(same_bits, 2)
    run(same_bits_in_one_order, 3, joins=False)


def adopt_and_leave() -> None:
    model = model_of()
    reference = copy.deepcopy(model)
    optimizer = adamw(model)
    classes = type(optimizer), type(model.tokens._parameters)
    parallel = gradwire.parallelize(model, optimizer)
    assert isinstance(optimizer, torch.optim.AdamW)
    plainly(model, optimizer)
    # Reading a parameter waits for its update: no leave, no synchronize.
    weights = {name: one.detach().clone() for name, one in model.named_parameters()}
    parallel.leave()
    assert (type(optimizer), type(model.tokens._parameters)) == classes
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, weights[name])
    before = model.tokens.weight.detach().clone()
    loss_of(model, 0).backward()
    optimizer.step()
    assert not torch.equal(before, model.tokens.weight)  # By itself now, and at once.
    gradwire.parallelize(reference, adamw(reference)).leave()
    assert torch.equal(gathered(reference.tokens.weight)[0], reference.tokens.weight)


def gathered(tensor: Tensor) -> list[Tensor]:
    everyone = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, tensor.detach())
    return everyone


def resume() -> None:
    """Continue from a checkpoint in the middle of a run, bit for bit."""

    def steps(model: nn.Module, optimizer: Optimizer, begin: int, end: int) -> None:
        for step in range(begin, end):
            loss_of(model, step).backward()
            optimizer.step()
            optimizer.zero_grad()

    whole = model_of()
    optimizer = adamw(whole)
    gradwire.parallelize(whole, optimizer)
    steps(whole, optimizer, 0, 3)
    file = io.BytesIO()
    torch.save((whole.state_dict(), optimizer.state_dict()), file)
    steps(whole, optimizer, 3, 6)
    model = model_of()
    optimizer = adamw(model)
    gradwire.parallelize(model, optimizer)
    file.seek(0)
    weights, state = torch.load(file)
    model.load_state_dict(weights)
    optimizer.load_state_dict(state)
    steps(model, optimizer, 3, 6)
    for name, value in whole.state_dict().items():
        assert torch.equal(value, model.state_dict()[name]), name


class Branches(nn.Module):
    """Ranks take different branches, and nobody takes the last one."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(32, 32)
        self.branches = nn.ModuleList(nn.Linear(32, 32) for _ in range(4))

    def forward(self, inputs: Tensor) -> Tensor:
        branch: nn.Module = self.branches[dist.get_rank() % 3]
        output: Tensor = branch(self.tokens(inputs))
        return output


def unused() -> None:
    weights = []
    for way in (plain_ddp, hidden):
        model = model_of(Branches)
        unmoved = model.branches[3].weight
        way(model, adamw(model), plainly, find_unused_parameters=True)
        assert model.branches[3].weight is unmoved
        assert unmoved.grad is None
        weights.append(model.state_dict())
    for name in weights[0]:
        assert torch.equal(weights[0][name], weights[1][name]), name
    model = model_of(Branches)
    with pytest.raises(RuntimeError, match=r"no gradient for branches.*find_unused_parameters"):
        plainly(model, _with(model, adamw(model)))


def _with(model: nn.Module, optimizer: Optimizer) -> Optimizer:
    gradwire.parallelize(model, optimizer)
    return optimizer


class Counting(torch.optim.SGD):
    """Keeps something in its groups, as some optimizers outside of torch do."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            group["count"] = group.get("count", 0) + 1
        return super().step(closure)


def misuse() -> None:
    model = model_of()
    optimizer = adamw(model)
    parallel = gradwire.parallelize(model, optimizer)
    held = list(model.parameters())
    plainly(model, optimizer)
    optimizer.zero_grad()
    parallel.synchronize()
    loss_of(model, 1).backward()
    nn.utils.clip_grad_norm_(held, 0.1)  # Not through the module: nobody could wait.
    with pytest.raises(RuntimeError, match=r"changed while they were being averaged"):
        optimizer.step()
    optimizer.zero_grad()
    loss_of(model, 1).backward()
    parallel.clip_grad_norm_(0.1)
    optimizer.step()
    optimizer.zero_grad()
    with pytest.raises(RuntimeError, match="leave"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
    loss = loss_of(model, 1)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="no_sync"):
        loss.backward()
    with pytest.raises(ValueError, match="leave"):
        gradwire.parallelize(model, optimizer)
    counted = model_of()
    optimizer = Counting(counted.parameters(), lr=0.1)
    parallel = gradwire.parallelize(counted, optimizer)
    loss_of(counted, 0).backward()
    with pytest.raises(TypeError, match="'count'"):
        optimizer.step()
    read = model_of()
    optimizer = adamw(read)
    gradwire.parallelize(read, optimizer)
    bias = read.blocks[0][1].bias
    plainly(read, optimizer)
    optimizer.zero_grad()
    hidden_state = functional.linear(torch.ones(2, 48), torch.ones(192, 48), bias)
    (loss_of(read, 1) * 0 + hidden_state.sum()).backward()  # Read by the module as well: fine.
    optimizer.step()
    optimizer.zero_grad()
    with pytest.raises(RuntimeError, match="by other means than its module"):
        unnoticed: Any = functional.linear(torch.ones(2, 48), torch.ones(192, 48), bias).sum()
        unnoticed.backward()
    wrapped = model_of()
    with pytest.raises(ValueError, match=r"does not have blocks"):
        gradwire.parallelize(wrapped, torch.optim.SGD([wrapped.tokens.weight, wrapped.scale]))
    with pytest.raises(TypeError, match="LBFGS"):
        gradwire.parallelize(wrapped, torch.optim.LBFGS(wrapped.parameters()))
    with pytest.raises(TypeError, match="DistributedDataParallel"):
        gradwire.parallelize(DistributedDataParallel(wrapped), adamw(wrapped))
    with pytest.raises(ValueError, match=r"no parameter"):
        gradwire.parallelize(nn.ReLU(), adamw(wrapped))


class Recurrent(nn.Module):
    """Holds references of its own (`nn.LSTM`), running means, and a parameter nobody calls for."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(32, 16)
        self.memory = nn.LSTM(16, 16, num_layers=2, batch_first=True)
        self.norm = nn.BatchNorm1d(16)
        self.head = nn.Linear(16, 32)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden, _ = self.memory(self.tokens(inputs))
        hidden = self.norm(hidden.transpose(1, 2)).transpose(1, 2)
        # Not by calling the module.
        return functional.linear(hidden, self.head.weight, self.head.bias)


def other_modules() -> None:
    weights = []
    for way in (plain_ddp, hidden):
        model = model_of(Recurrent)
        way(model, adamw(model), plainly)
        weights.append({name: one.clone() for name, one in model.named_parameters()})
    for name in weights[0]:
        assert torch.equal(weights[0][name], weights[1][name]), name


def compiled() -> None:
    """Blocks compiled one by one, and a whole model."""
    weights = []
    for whole in (None, False, True):
        torch._dynamo.reset()
        model = model_of()
        if whole is None:
            plain_ddp(model, adamw(model), plainly)
        else:
            if whole:
                trained: Any = torch.compile(model, backend="aot_eager")
            else:
                trained = model
                for block in model.blocks:
                    block.compile(backend="aot_eager")
            hidden(trained, adamw(trained), plainly)
        weights.append(dict(model.named_parameters()))
    for name in weights[0]:
        for other in weights[1:]:
            torch.testing.assert_close(weights[0][name], other[name], rtol=1e-4, atol=1e-5)


def compressed() -> None:
    """Ranks stay alike bit for bit, and the loss falls as without compression."""
    losses = {}
    for codec in ("none", "int8", "adaptive", "top_k", "power_sgd"):
        model = model_of()
        optimizer = adamw(model)
        parallel = gradwire.parallelize(model, optimizer, codec)
        first = float(loss_of(model, 0).detach())
        for step in range(12):
            loss = loss_of(model, step % 3)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if step == 6:  # A checkpoint, while gradients are under way.
                state = parallel.compression.state_dict(model)
                parallel.compression.load_state_dict(state, model)
        assert "travel" in parallel.compression.decisions() or codec == "adaptive"
        parallel.leave()
        for parameter in model.parameters():
            assert all(torch.equal(parameter, other) for other in gathered(parameter))
        losses[codec] = float(loss.detach())
    for codec in ("int8", "adaptive"):
        assert losses[codec] == pytest.approx(losses["none"], rel=0.02), losses
    assert max(losses.values()) < first / 2, losses


def another_link() -> None:
    """Divide gradients anew when the link has changed, and train on as before."""
    slow = LinkModel(alpha_s=1e-2, beta_s=1e-9, peers=1)
    expected = model_of()
    plain_ddp(expected, adamw(expected), plainly)
    with mock.patch.multiple(parallelize_module, MEASURED_EVERY=2, measure=lambda *_: slow):
        model = model_of()
        optimizer = adamw(model)
        parallel = gradwire.parallelize(model, optimizer)
        parallel.link = LinkModel(alpha_s=1e-5, beta_s=1e-9, peers=1)
        parallel._lay_out(parallel._order)
        before = len(parallel._buckets)
        plainly(model, optimizer)
        assert parallel.link == slow
        assert len(parallel._buckets) < before, "start-up costs more: larger buckets"
        parallel.leave()
    for name, value in expected.state_dict().items():
        assert torch.equal(value, model.state_dict()[name]), name


def updated_together() -> None:
    """Update all that is there at once; but whoever reads it behind our back is still told."""
    small_buckets = LinkModel(alpha_s=1e-6, beta_s=1e-9, peers=1)
    with mock.patch.object(parallelize_module, "measure", lambda *_: small_buckets):
        model = model_of()
        optimizer = adamw(model)
        parallel = gradwire.parallelize(model, optimizer)
    held = model.blocks[1][1].weight
    plainly(model, optimizer)
    optimizer.zero_grad()
    assert len(parallel._buckets) > 6
    for bucket in parallel._buckets:
        assert bucket.job is not None
        for work in bucket.job._works:
            work.wait()
    takeover = parallel._takeover
    with mock.patch.object(takeover, "update", wraps=takeover.update) as update:
        _ = model.scale
        assert update.call_count == 1
        assert not any(bucket.is_open for bucket in parallel._buckets)
        parallel.synchronize()
        assert update.call_count == 1
    after_synchronize: Any = functional.linear(torch.ones(2, 48), held).sum()
    after_synchronize.backward()
    loss_of(model, 1).backward(inputs=[p for p in model.parameters() if p is not held])
    optimizer.step()
    optimizer.zero_grad()
    for bucket in parallel._buckets:
        for work in bucket.job._works if bucket.job is not None else ():
            work.wait()
    _ = model.scale
    unnoticed: Any = functional.linear(torch.ones(2, 48), held).sum()
    with pytest.raises(RuntimeError, match="by other means than its module"):
        unnoticed.backward()


def dead_peer() -> str:
    model = model_of()
    optimizer = adamw(model)
    gradwire.parallelize(model, optimizer)
    loss_of(model, 0).backward()
    optimizer.step()
    optimizer.zero_grad()
    if dist.get_rank() == 1:
        os._exit(0)
    for step in range(1, 100):
        try:
            loss_of(model, step).backward()
            optimizer.step()
        except gradwire.GradwireError as error:
            return str(error)
    return "no error"


@pytest.mark.parametrize(
    "scenario",
    [
        adopt_and_leave,
        resume,
        unused,
        misuse,
        other_modules,
        compiled,
        compressed,
        another_link,
        updated_together,
    ],
    ids=lambda scenario: scenario.__name__,
)
def test_with_two_ranks(scenario: Callable[[], None]) -> None:
    run(scenario, 2)


def test_a_dead_peer_is_named() -> None:
    answers = run(dead_peer, 2, killed=[1])
    assert "rank 1" in answers[0]


def test_small_gradients_are_merged_and_large_ones_are_not_copied() -> None:
    sizes = [10, 5000, 20, 30, 6000, 4090, 50]
    buckets = divide([Member(size) for size in sizes], 4096)
    assert buckets == [[0, 2, 3], [1], [4], [5], [6]]
    assert sorted(itertools.chain.from_iterable(buckets)) == list(range(len(sizes)))
    assert [priority(place, 5) for place in range(5)] == [128, 159, 191, 223, 255]


def test_members_of_different_kinds_are_not_merged() -> None:
    kinds = [Member(8, torch.float32), Member(4, torch.bfloat16), Member(8, torch.float32)]
    assert divide(kinds, 4096) == [[0, 2], [1]]


def test_sizes_follow_the_link() -> None:
    gigabit = LinkModel(alpha_s=3e-4, beta_s=8e-9, peers=3)
    fast = LinkModel(alpha_s=2e-5, beta_s=1e-10, peers=3)
    assert gigabit.merged_bytes == pytest.approx(37_500, abs=1)
    assert gigabit.tile_bytes == 32 << 10
    assert gigabit.in_flight_bytes * gigabit.beta_s < 1e-3
    assert fast.tile_bytes == 128 << 10
    assert fast.differs_from(gigabit)
    assert not gigabit.differs_from(LinkModel(4e-4, 7e-9, 3))
    alone = LinkModel(3e-4, 8e-9, peers=1)
    assert gigabit.in_flight_bytes < alone.in_flight_bytes


def test_what_is_needed_later_does_not_hold_up_the_forward() -> None:
    # Ready last to first, as in backward; the first one is needed at once.
    ready, durations = [2.0, 1.0, 0.0], [1.0, 1.0, 1.0]
    assert exposed_seconds(ready, durations) == 1.0
    assert exposed_seconds(ready, [3.0, 3.0, 3.0]) == 7.0
    assert exposed_seconds(ready, [3.0, 3.0, 3.0], [0.0, 3.0, 6.0]) == 3.0
    assert exposed_seconds(ready, [0.5, 3.0, 3.0], [0.0, 3.0, 6.0]) == 0.5
