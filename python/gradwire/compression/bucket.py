"""One bucket of gradients on its way.

A bucket's gradients are divided into runs that travel alike, which go out at once, without copies;
small tensors are packed into one operation. What a codec loses is kept for the next step where
error feedback is on.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gradwire.collectives import Delivery
from gradwire.lineage import CONTEXT

if TYPE_CHECKING:
    from gradwire.compression.state import CompressionState

NONE = "none"

_PACKED_BYTES = 64 << 10
"""Uncompressed gradients below this are packed into one operation."""


@dataclass(frozen=True)
class BucketContent:
    """What is to be averaged over all ranks.

    Attributes
    ----------
    index
        The bucket's number, the same on all ranks.
    parameters, gradients
        The parameters, and their gradients as flat contiguous tensors, averaged in place.
    buffer
        The memory that all gradients lie in, in their order; `None` if each has its own.
    channel
        What numbers the bucket's operations apart from all others, the same on all ranks.
    delivery
        How its operations travel beside others.
    """

    index: int
    parameters: Sequence[Tensor]
    gradients: Sequence[Tensor]
    buffer: Tensor | None
    channel: str
    delivery: Delivery


class BucketJob:
    """One bucket on its way.

    Parameters
    ----------
    state
        How gradients travel.
    group
        The process group, gradwire's.
    content
        The bucket.
    """

    def __init__(self, state: CompressionState, group: Any, content: BucketContent) -> None:
        self._state = state
        self._group = group
        self._content = content
        self._packed: list[Tensor] = []
        self._works: list[Any] = []
        self._finishers: list[Callable[[], None]] = []
        with in_channel(content.channel):
            self._start_all()

    def _start_all(self) -> None:
        state, content = self._state, self._content
        if state.controller is not None:
            state.controller.before(content.index, content.parameters, content.gradients)
        codecs = [
            self._codec(parameter, gradient)
            for parameter, gradient in zip(content.parameters, content.gradients, strict=True)
        ]
        if state.config.feeds_back:
            for index, codec in enumerate(codecs):
                parameter, gradient = content.parameters[index], content.gradients[index]
                had_some = state.feedback.add(parameter, gradient)
                if had_some and codec == NONE:
                    self._finish_with([index], lambda: [None])
        for codec, members in itertools.groupby(range(len(codecs)), key=codecs.__getitem__):
            self._start(codec, list(members))
        self._start_packed()

    def _codec(self, parameter: Tensor, gradient: Tensor) -> str:
        """Return how a parameter's gradient travels."""
        state = self._state
        if gradient.dtype != torch.float32 or state.step <= state.config.first_step:
            return NONE
        if not state.config.may_compress(parameter):
            return NONE
        if state.controller is not None:
            return state.controller.codec(parameter)
        return state.config.codec

    def _start(self, codec: str, members: list[int]) -> None:
        gradients = [self._content.gradients[index] for index in members]
        if codec == NONE:
            self._start_raw(gradients)
            return
        special = self._state.special()
        if special is not None:
            parameters = [self._content.parameters[index] for index in members]
            self._finish_with(members, special.start(self._group, parameters, gradients))
            return
        for run, inside in self._runs(members):
            error = torch.empty_like(run, device="cpu") if self._state.config.feeds_back else None
            self._reduce(run, codec, error)
            if error is not None:
                lengths = [self._content.gradients[index].numel() for index in inside]
                self._finish_with(inside, _pieces_of(error, lengths))

    def _start_raw(self, gradients: list[Tensor]) -> None:
        if self._content.buffer is None:
            for gradient in gradients:
                if gradient.nbytes < _PACKED_BYTES:
                    self._packed.append(gradient)
                else:
                    self._reduce(gradient)
        elif sum(gradient.nbytes for gradient in gradients) < _PACKED_BYTES:
            self._packed += gradients
        else:
            self._reduce(_run(self._content.buffer, gradients))

    def _start_packed(self) -> None:
        if len(self._packed) <= 1:
            for gradient in self._packed:
                self._reduce(gradient)
            return
        packed = torch.cat(self._packed)
        self._reduce(packed)

        def unpack() -> None:
            pieces = packed.split([gradient.numel() for gradient in self._packed])
            for gradient, piece in zip(self._packed, pieces, strict=True):
                gradient.copy_(piece)

        self._finishers.append(unpack)

    def _runs(self, members: list[int]) -> Iterator[tuple[Tensor, list[int]]]:
        """Yield the members' memory in pieces as large as can be, with the members in each."""
        gradients = [self._content.gradients[index] for index in members]
        if self._content.buffer is not None:
            yield _run(self._content.buffer, gradients), members
            return
        for index, gradient in zip(members, gradients, strict=True):
            yield gradient, [index]

    def _reduce(
        self, tensor: Tensor, codec: str | None = None, error: Tensor | None = None
    ) -> None:
        work = self._group._reduce_with_codec(tensor, "avg", codec, error, self._content.delivery)
        self._works.append(work)

    def _finish_with(
        self, members: list[int], finisher: Callable[[], Sequence[Tensor | None]]
    ) -> None:
        """Note what ends an operation and says what it lost of each member, `None` for nothing."""

        def finish() -> None:
            lost = finisher()
            if not self._state.config.feeds_back:
                return
            for index, residual in zip(members, lost, strict=True):
                kept = None if residual is None else residual.cpu()
                self._state.feedback.keep(self._content.parameters[index], kept)
                finite = bool(torch.isfinite(self._content.gradients[index]).all())
                self._state.feedback.note(finite)

        self._finishers.append(finish)

    def finish(self, drives: bool) -> None:
        """Wait for the operations, and put everything where it belongs.

        Parameters
        ----------
        drives
            Whether the calling thread moves the bytes itself meanwhile. Threads beside a
            computation leave that to others, and the cores to the computation.
        """
        with in_channel(self._content.channel):
            for work in self._works:
                if drives:
                    work.wait()
                else:
                    work._outcome()
            done = time.perf_counter() - self._seconds_over()
            with torch.no_grad():
                for finisher in self._finishers:
                    finisher()
            controller = self._state.controller
            if controller is not None:
                content = self._content
                controller.after(content.index, content.parameters, content.gradients, done)

    def is_over(self) -> bool:
        """Return whether all operations are over, well or not."""
        return all(work.is_completed() for work in self._works)

    def _seconds_over(self) -> float:
        """Return for how long all operations have been over."""
        return min((work.seconds_over() for work in self._works), default=0.0)


class in_channel:  # noqa: N801 - a context manager that reads as a phrase
    """Number the operations started inside apart from others'."""

    def __init__(self, channel: str) -> None:
        self._channel = channel

    def __enter__(self) -> None:
        self._outer, CONTEXT.path = CONTEXT.path, self._channel

    def __exit__(self, *raised: object) -> None:
        CONTEXT.path = self._outer


def _pieces_of(error: Tensor, lengths: list[int]) -> Callable[[], list[Tensor]]:
    return lambda: list(error.split(lengths))


def _run(buffer: Tensor, gradients: list[Tensor]) -> Tensor:
    """Return neighbouring gradients of a buffer as one tensor, padding between them included."""
    element = buffer.element_size()
    start = (gradients[0].data_ptr() - buffer.data_ptr()) // element
    last = gradients[-1]
    end = (last.data_ptr() - buffer.data_ptr()) // element + last.numel()
    return buffer[start:end]
