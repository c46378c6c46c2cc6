"""One rank of the benchmark: trains and judges one (arm, seed) after the other.

Started on every host by `gradwire lab run`, with torchrun's environment. Every run has a process
group and a model of its own; rank 0 appends a finished run's result to the results.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import os
import re
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1] / "demo"))

import torch
import torch.distributed as dist
from arms import BY_NAME, ONE_BIT_WARM_UP_PART, WARM_UP_PART, Arm
from interface import interface_towards, sent_bytes
from model import GPT, Shape, parameter_count
from protocol import Protocol
from stored import append
from torch import nn
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel
from train import Batches

import gradwire
from gradwire.compression.operations import gradwire_group

TIMEOUT = timedelta(seconds=120)
_TENSOR_LINE = re.compile(r"^\S+ +(\d+)  (\S+)$", re.MULTILINE)
_PLAN = re.compile(r"^step (\d+): (.*)$", re.MULTILINE)


class CompressionFailedError(Exception):
    """A run that was to compress did not, so its loss says nothing about compression."""


class PlanLog(logging.Handler):
    """Keeps what the adaptive controller decides: step, reason, elements by codec."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.plans: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Take a plan over; other messages are kept as they are."""
        message = record.getMessage()
        heading = _PLAN.search(message)
        elements: dict[str, int] = {}
        for count, codec in _TENSOR_LINE.findall(message):
            elements[codec] = elements.get(codec, 0) + int(count)
        step, reason = (int(heading[1]), heading[2]) if heading else (0, message)
        self.plans.append({"step": step, "reason": reason, "elements": elements})


class Run:
    """One training run.

    Parameters
    ----------
    protocol
        What all runs share.
    arm
        How gradients travel.
    seed
        Of initial parameters and data order.
    text
        Directory with `train.bin` and `held_out.bin`.
    """

    def __init__(self, protocol: Protocol, arm: Arm, seed: int, text: Path) -> None:
        torch.manual_seed(seed)
        self._protocol, self._arm, self._seed, self._text = protocol, arm, seed, text
        shape = Shape(protocol.layers, protocol.width, protocol.heads, protocol.context)
        self._network = GPT(shape)
        self._model, self._optimizer = self._prepared()
        self._batches = Batches(
            text, protocol.batch, protocol.context, seed, dist.get_rank(), protocol.ranks
        )

    def _prepared(self) -> tuple[nn.Module, torch.optim.Optimizer]:
        protocol, arm = self._protocol, self._arm
        options: dict[str, Any] = {
            "lr": protocol.learning_rate,
            "betas": (protocol.first_moment, protocol.second_moment),
            "weight_decay": protocol.weight_decay,
        }
        if arm.method == "one_bit_adam":
            warm_up = max(1, protocol.steps // ONE_BIT_WARM_UP_PART)
            parameters = self._network.parameters()
            return self._network, gradwire.OneBitAdam(parameters, warm_up_steps=warm_up, **options)
        model = DistributedDataParallel(self._network, gradient_as_bucket_view=True)
        _register_hook(model, protocol, arm)
        return model, torch.optim.AdamW(model.parameters(), fused=True, **options)

    def result(self) -> dict[str, Any]:
        """Train, judge, and return what there is to say; the same on all ranks."""
        began = time.perf_counter()
        before, plans = self._counted(), PlanLog()
        log = logging.getLogger("gradwire.compression")
        log.setLevel(logging.INFO)
        log.addHandler(plans)
        try:
            losses = [self._step(step) for step in range(self._protocol.steps)]
        finally:
            log.removeHandler(plans)
        dist.barrier()
        after = self._counted()
        counted = {name: after[name] - count for name, count in before.items()}
        result = {
            "arm": self._arm.name,
            "seed": self._seed,
            "held_out_loss": self._held_out_loss(),
            "train_loss": _mean(sum(losses[-20:]) / len(losses[-20:])),
            "parameters": parameter_count(self._network),
            "replicas_identical": self._replicas_are_identical(),
            **{name: round(_sum(count)) for name, count in counted.items()},
            "plans": plans.plans,
            "seconds": round(time.perf_counter() - began, 1),
            "gradwire": gradwire.__version__,
            "torch": torch.__version__,
        }
        _check(self._protocol, self._arm, result)
        return result

    def _step(self, step: int) -> float:
        peak = self._arm.learning_rate or self._protocol.learning_rate
        for group in self._optimizer.param_groups:
            group["lr"] = self._protocol.rate_at(step, peak)
        # Zeroed in place: gradients stay views of DDP's buckets.
        self._optimizer.zero_grad(set_to_none=False)
        loss = self._model(*self._batches.draw())
        loss.backward()
        if self._arm.method != "one_bit_adam":  # Its gradients are averaged in its step.
            nn.utils.clip_grad_norm_(self._model.parameters(), self._protocol.largest_norm)
        self._optimizer.step()
        return float(loss.detach())

    def _counted(self) -> dict[str, int]:
        """Return bytes so far: of this host's interface (once per host), and the engine's."""
        first_on_host = os.environ["LOCAL_RANK"] == "0"
        counts = {"interface_bytes": sent_bytes() if first_on_host else 0}
        if self._arm.backend == "gradwire":
            engine = gradwire_group().counters()
            names = ("bytes_sent", "bytes_before_codec", "bytes_after_codec")
            counts |= {name: engine[name] for name in names}
        return counts

    @torch.no_grad()
    def _held_out_loss(self) -> float:
        """Return nats per byte over the whole held-out text, each rank judging its share."""
        protocol = self._protocol
        whole = (self._text / "held_out.bin").stat().st_size // protocol.context
        losses = [
            float(self._network(inputs, targets))
            for inputs, targets in self._batches.held_out(whole // protocol.batch // protocol.ranks)
        ]
        return _mean(sum(losses) / len(losses))

    def _replicas_are_identical(self) -> bool:
        digest = hashlib.sha256()
        for parameter in self._network.parameters():
            digest.update(parameter.detach().numpy().tobytes())
        everyone: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, digest.hexdigest())
        return len(set(everyone)) == 1


def _register_hook(model: DistributedDataParallel, protocol: Protocol, arm: Arm) -> None:
    first = max(2, protocol.steps // WARM_UP_PART)
    if arm.method == "hook":
        changes = {"smallest": protocol.smallest, **arm.changes}
        if arm.codec == "power_sgd":
            changes["first_step"] = first
        model.register_comm_hook(*gradwire.ddp_hook(arm.codec, **changes))
    elif arm.method == "torch_fp16":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif arm.method == "torch_power_sgd":
        state = powerSGD_hook.PowerSGDState(
            process_group=None, matrix_approximation_rank=4, start_powerSGD_iter=first
        )
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


def _check(protocol: Protocol, arm: Arm, result: dict[str, Any]) -> None:
    """Refuse a result that is not about what the arm says it is about."""
    if not result["replicas_identical"]:
        raise CompressionFailedError(f"{arm.name}: ranks ended with different parameters")
    raw = raw_bytes(protocol, result["parameters"])
    if arm.compresses and result["interface_bytes"] >= 0.95 * raw:
        raise CompressionFailedError(
            f"{arm.name}: {result['interface_bytes']} bytes were sent, {raw} would have been "
            "without compression"
        )


def raw_bytes(protocol: Protocol, parameters: int) -> int:
    """Return the bytes between hosts of float32 gradients, reduced within each host first."""
    return 2 * (protocol.hosts - 1) * 4 * parameters * protocol.steps


def _sum(value: float) -> float:
    total = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(total)
    return float(total)


def _mean(value: float) -> float:
    return _sum(value) / dist.get_world_size()


def _within(deadline: float) -> bool:
    """Whether rank 0 still has time; the same answer on all ranks."""
    answer = torch.tensor(int(time.time() < deadline))
    dist.broadcast(answer, 0)
    return bool(answer)


def _run_all(options: argparse.Namespace, store: Store, rank: int, size: int) -> None:
    protocol = Protocol(**json.loads(options.protocol))
    for name, seed in json.loads(options.runs):
        arm = BY_NAME[name]
        pg_options = gradwire.options(**arm.settings) if arm.backend == "gradwire" else None
        dist.init_process_group(
            arm.backend,
            store=PrefixStore(f"{name}/{seed}", store),
            rank=rank,
            world_size=size,
            timeout=TIMEOUT,
            pg_options=pg_options,
        )
        go_on = _within(options.deadline)
        if go_on:
            result = Run(protocol, arm, seed, options.text).result()
            if rank == 0:
                append(options.results, result)
        dist.destroy_process_group()
        if not go_on:
            return


def main() -> None:
    """Do the runs asked for."""
    parser = argparse.ArgumentParser(description="One rank; convergence/benchmark.py starts it.")
    parser.add_argument("--protocol", required=True, help="as JSON")
    parser.add_argument("--runs", required=True, help="[[arm, seed], ...] as JSON")
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--deadline", type=float, required=True, help="seconds since 1970")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    # Gloo looks up its own host name, which says nothing about the lab's network.
    os.environ["GLOO_SOCKET_IFNAME"] = interface_towards(os.environ["MASTER_ADDR"])
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = TCPStore(address, port, size, is_master=rank == 0, timeout=TIMEOUT)
    _run_all(options, store, rank, size)
    # Rank 0 serves the store, so it leaves last.
    store.set(f"left/{rank}", "")
    if rank == 0:
        store.wait([f"left/{other}" for other in range(size)])


if __name__ == "__main__":
    main()
