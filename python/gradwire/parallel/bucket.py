"""One bucket's way through a step."""

from __future__ import annotations

import enum
from collections.abc import Container, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from gradwire.collectives import Delivery
from gradwire.compression.bucket import BucketContent, BucketJob
from gradwire.parallel.optimizer import Places, Settings


def local(tensor: Tensor) -> Tensor:
    """Return this rank's part of a tensor that may be distributed over other ranks (DTensor)."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


class Phase(enum.Enum):
    """Where a bucket stands."""

    COLLECTING = enum.auto()
    """Gradients are missing, or all of them are local and stay so."""
    REDUCING = enum.auto()
    """All gradients are there and on their way."""
    REDUCED = enum.auto()
    """Gradients are averaged and in place."""


@dataclass
class Bucket:
    """Parameters whose gradients travel together and that are updated together.

    Attributes
    ----------
    index
        Its number, in the order of need; the same on all ranks.
    names, parameters
        Its members.
    places
        Where the optimizer has them.
    channel, delivery
        How its operations are numbered, and travel.
    backwards
        How often each member is given a gradient before the sum is averaged.
    phase
        Where it stands.
    missing
        How many gradients of this step each member still misses, by identity; none if not in it.
    job
        The operations under way.
    due
        Set once the training loop has called `step`: the settings to update with.
    zeroed
        Set once the loop has called `zero_grad` while the update was due: what it passed as
        `set_to_none`.
    borrowed
        Stand-ins for gradients that this rank does not have, by member.
    taken
        The gradients as they were when the engine took them, with their versions.
    is_unread
        Whether the last update came without anybody reading a parameter through its module, and
        nobody has read one since: a reader by other means may have been too early.
    """

    index: int
    names: Sequence[str]
    parameters: Sequence[Tensor]
    places: Places
    channel: str
    delivery: Delivery
    backwards: int = 1
    phase: Phase = Phase.COLLECTING
    missing: dict[int, int] = field(default_factory=dict)
    job: BucketJob | None = None
    due: Settings | None = None
    zeroed: bool | None = None
    borrowed: dict[int, Tensor] = field(default_factory=dict)
    taken: list[tuple[Tensor, int]] = field(default_factory=list)
    is_unread: bool = False

    def __post_init__(self) -> None:
        self._expect_all()

    def _expect_all(self) -> None:
        self.missing = {id(parameter): self.backwards for parameter in self.parameters}

    def note_gradient(self, parameter: Tensor) -> bool:
        """Note that a member was given a gradient; true if all are there now."""
        left = self.missing.pop(id(parameter), 1) - 1
        if left:
            self.missing[id(parameter)] = left
        return not self.missing

    @property
    def is_open(self) -> bool:
        """Whether something is under way that a reader of a parameter has to wait for."""
        return self.phase is Phase.REDUCING or self.due is not None

    def has_arrived(self) -> bool:
        """Return whether all that is on its way is there."""
        return self.job is not None and self.job.is_over()

    def content(self) -> BucketContent:
        """Return what is to be averaged."""
        gradients = [self._gradient(parameter) for parameter in self.parameters]
        return BucketContent(
            self.index, self.parameters, gradients, None, self.channel, self.delivery
        )

    def _gradient(self, parameter: Tensor) -> Tensor:
        gradient = self.borrowed.get(id(parameter))
        if gradient is None:
            gradient = parameter.grad
            assert gradient is not None
            if not gradient.is_contiguous():
                gradient = parameter.grad = gradient.contiguous()
        return local(gradient).detach().view(-1)

    def note_versions(self, gradients: Sequence[Tensor]) -> None:
        """Note how gradients are that the engine has taken."""
        self.taken = [(gradient, gradient._version) for gradient in gradients]

    def borrow_missing(self) -> None:
        """Let zeros stand in for gradients that this rank does not have."""
        for parameter in self.parameters:
            if parameter.grad is None:
                self.borrowed[id(parameter)] = torch.zeros_like(parameter)

    def give_back(self, used: Container[int] | None) -> None:
        """Make stand-ins the gradients of parameters that other ranks have used."""
        for parameter in self.parameters:
            gradient = self.borrowed.get(id(parameter))
            if gradient is not None and used is not None and id(parameter) in used:
                parameter.grad = gradient

    def was_changed(self) -> bool:
        """Return whether somebody wrote to a gradient that is on its way."""
        return self.phase is Phase.REDUCING and any(
            gradient._version != version for gradient, version in self.taken
        )

    def is_partial(self) -> bool:
        """Return whether some members have a gradient of this step and some have none."""
        whole = len(self.parameters) * self.backwards
        return 0 < sum(self.missing.values()) < whole

    def missing_names(self) -> list[str]:
        """Return the names of members that have no gradient in this step."""
        return [
            name
            for name, parameter in zip(self.names, self.parameters, strict=True)
            if id(parameter) in self.missing
        ]

    def start_over(self) -> None:
        """Wait for the next step's gradients."""
        self.phase = Phase.COLLECTING
        self._expect_all()
        self.job = None
        self.due = None
        self.zeroed = None
        self.borrowed.clear()
        self.taken.clear()
