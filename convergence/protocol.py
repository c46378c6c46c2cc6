"""What all runs of one comparison have in common, fixed before any of them starts."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Protocol:
    """Model, data and optimizer of a run; only the way gradients travel differs between runs.

    Attributes
    ----------
    name
        What results are filed under.
    hosts, ranks_per_host
        Hosts of the lab, each in a network namespace of its own, and processes on each.
    layers, width, heads, context
        The model; see `Shape`.
    batch
        Windows per rank and step.
    steps
        Optimizer steps.
    learning_rate
        Peak; tuned for uncompressed gradients alone.
    weight_decay, second_moment
        AdamW's decay and second beta.
    first_moment
        AdamW's first beta.
    largest_norm
        Averaged gradients are clipped to this norm.
    smallest
        Tensors with fewer elements, and 1-D ones, travel uncompressed.
    text
        SHA-256 of the training and held-out text.
    """

    name: str
    hosts: int
    ranks_per_host: int
    batch: int
    text: str
    layers: int = 2
    width: int = 64
    heads: int = 4
    context: int = 32
    steps: int = 300
    learning_rate: float = 1e-3
    weight_decay: float = 0.1
    first_moment: float = 0.9
    second_moment: float = 0.95
    largest_norm: float = 1.0
    smallest: int = 2048

    @property
    def ranks(self) -> int:
        """Number of processes that train together."""
        return self.hosts * self.ranks_per_host

    @property
    def warm_up_steps(self) -> int:
        """Steps until the learning rate is at its peak."""
        return max(1, self.steps // 10)

    @property
    def file_name(self) -> str:
        """Name of the file with this protocol's results: no two protocols share one."""
        text = json.dumps(asdict(self), sort_keys=True)
        return f"{self.name}-{hashlib.sha256(text.encode()).hexdigest()[:10]}.jsonl"

    def rate_at(self, step: int, peak: float) -> float:
        """Return a step's learning rate: linear warm-up, then a cosine down to 0.

        Parameters
        ----------
        step
            From 0.
        peak
            The highest learning rate.
        """
        if step < self.warm_up_steps:
            return peak * (step + 1) / self.warm_up_steps
        done = (step + 1 - self.warm_up_steps) / max(1, self.steps - self.warm_up_steps)
        return peak * 0.5 * (1 + math.cos(math.pi * done))


def four_ranks(text: str) -> Protocol:
    """Return the main protocol: 4 hosts with a rank each."""
    return Protocol("4-ranks", hosts=4, ranks_per_host=1, batch=8, text=text)


def sixteen_ranks(text: str) -> Protocol:
    """Return the protocol with 4 hosts of 4 ranks each and the same batch over all ranks."""
    return Protocol("16-ranks", hosts=4, ranks_per_host=4, batch=2, text=text)


def tuning(text: str) -> Protocol:
    """Return the main protocol, filed apart: for runs at several learning rates."""
    return Protocol("tuning", hosts=4, ranks_per_host=1, batch=8, text=text)


PROTOCOLS = {"4-ranks": four_ranks, "16-ranks": sixteen_ranks, "tuning": tuning}
"""The protocols by name."""
