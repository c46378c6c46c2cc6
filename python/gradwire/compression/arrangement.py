"""DDP's division of parameters into buckets, in a run that goes on from a checkpoint.

Which elements share a block of a codec, and in which order they are summed, depends on the bucket
that they are in. DDP divides anew after its first step, in the order in which gradients came, so
the first step of a resumed run would be another one than it was. It is held back instead until all
its gradients are there, and travels in the buckets of the saved run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.collectives import Delivery
from gradwire.compression.bucket import BucketContent
from gradwire.compression.checkpoint import Named, check_known
from gradwire.lineage import OperationFuture


@dataclass(frozen=True)
class Arrived:
    """A bucket that DDP has handed over, and the future by which it gets it back."""

    content: BucketContent
    future: OperationFuture


def content_of(
    index: int, parameters: Sequence[Tensor], pieces: Sequence[Tensor], buffer: Tensor
) -> BucketContent:
    """Return a bucket whose gradients are these pieces of a buffer, in their order."""
    name = f"bucket {index}"
    gradients = [piece.view(-1) for piece in pieces]
    return BucketContent(index, parameters, gradients, buffer, name, Delivery(label=name))


class Arrangement:
    """What was in which bucket in the last step, and what is to be in the next one."""

    def __init__(self) -> None:
        self._buckets: dict[int, Sequence[Tensor]] = {}
        self._wanted: list[list[Tensor]] | None = None
        self._held: list[Arrived] = []

    def add(self, arrived: Arrived, is_last: bool) -> list[Arrived]:
        """Take a bucket; return those that are to be started now, perhaps none."""
        if self._wanted is None:
            self._buckets[arrived.content.index] = arrived.content.parameters
            return [arrived]
        self._held.append(arrived)
        if not is_last:
            return []
        held, self._held = self._held, []
        return held

    def contents(self, arrived: Sequence[Arrived]) -> list[BucketContent]:
        """Return in which buckets gradients travel: as they arrived, or as in the saved run."""
        wanted, self._wanted = self._wanted, None
        if wanted is None:
            return [one.content for one in arrived]
        gradients = _gradients([one.content for one in arrived])
        if gradients.keys() != {id(one) for parameters in wanted for one in parameters}:
            contents = [one.content for one in arrived]  # Others are trained now.
        else:
            contents = []
            for index, parameters in enumerate(wanted):
                buffer = torch.cat([gradients[id(one)] for one in parameters])
                pieces = buffer.split([one.numel() for one in parameters])
                contents.append(content_of(index, parameters, pieces, buffer))
        self._buckets = {content.index: content.parameters for content in contents}
        return contents

    def state_dict(self, parameters: Named) -> list[list[str]]:
        """Return the names of the last step's buckets' members."""
        names = {id(parameter): name for name, parameter in parameters}
        buckets = [self._buckets[index] for index in sorted(self._buckets)]
        return [[names[id(one)] for one in members if id(one) in names] for members in buckets]

    def load_state_dict(self, buckets: Sequence[Sequence[str]], parameters: Named) -> None:
        """Let the next step travel in saved buckets."""
        known = dict(parameters)
        check_known((name for members in buckets for name in members), known)
        self._wanted = [[known[name] for name in members] for members in buckets] or None


def give_back(contents: Sequence[BucketContent], arrived: Sequence[Arrived]) -> None:
    """Copy averaged gradients to where DDP wants them, if they travelled in other buckets."""
    averaged = _gradients(contents)
    for key, gradient in _gradients([one.content for one in arrived]).items():
        if averaged[key] is not gradient:
            gradient.copy_(averaged[key])


def _gradients(contents: Sequence[BucketContent]) -> dict[int, Tensor]:
    return {
        id(parameter): gradient
        for content in contents
        for parameter, gradient in zip(content.parameters, content.gradients, strict=True)
    }
