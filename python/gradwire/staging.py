"""Memory that the engine can use: contiguous, on the host, alive until the operation is over."""

from __future__ import annotations

import torch
from torch import Tensor

Memory = tuple[int, int]
"""Address and length in bytes."""


def is_direct(tensor: Tensor) -> bool:
    """Return whether the engine can work on the tensor's own memory."""
    return (
        tensor.is_cpu
        and tensor.layout is torch.strided
        and tensor.is_contiguous()
        and not tensor.is_neg()
        and not tensor.is_conj()
    )


def _check_dense(tensor: Tensor) -> None:
    if tensor.layout is not torch.strided:
        raise TypeError(
            f"gradwire needs dense tensors here, got layout {tensor.layout}; "
            "only all_reduce takes sparse COO tensors"
        )


class HostArguments:
    """The memory of one operation's CPU tensors; what is not contiguous is copied.

    Attributes
    ----------
    inputs, outputs
        What the engine reads and writes.
    kept
        The tensors that own this memory.
    copies
        Pairs (tensor, contiguous copy) to be copied back when the operation is over.
    """

    __slots__ = ("copies", "inputs", "kept", "outputs")

    def __init__(self) -> None:
        self.inputs: list[Memory] = []
        self.outputs: list[Memory] = []
        self.kept: list[Tensor] = []
        self.copies: list[tuple[Tensor, Tensor]] = []

    def add_input(self, tensor: Tensor) -> Tensor:
        """Add a tensor that is read; return the one whose memory is used."""
        host = tensor if is_direct(tensor) else self._copy(tensor)
        self.inputs.append((host.data_ptr(), host.nbytes))
        self.kept.append(host)
        return host

    def add_output(self, tensor: Tensor) -> Tensor:
        """Add a tensor that is only written; return the one whose memory is used."""
        host = tensor
        if not is_direct(tensor):
            self._check(tensor)
            host = torch.empty(tensor.shape, dtype=tensor.dtype)
            self.copies.append((tensor, host))
        self.outputs.append((host.data_ptr(), host.nbytes))
        self.kept.append(host)
        return host

    def add_in_place(self, tensor: Tensor) -> Tensor:
        """Add a tensor that is read and overwritten; return the one whose memory is used."""
        host = tensor
        if not is_direct(tensor):
            host = self._copy(tensor)
            self.copies.append((tensor, host))
        self.outputs.append((host.data_ptr(), host.nbytes))
        self.kept.append(host)
        return host

    def copy_back(self) -> None:
        """Copy the results to where the caller wants them."""
        with torch.no_grad():
            for tensor, host in self.copies:
                tensor.copy_(host)

    def _copy(self, tensor: Tensor) -> Tensor:
        self._check(tensor)
        return tensor.detach().resolve_conj().resolve_neg().contiguous()

    @staticmethod
    def _check(tensor: Tensor) -> None:
        _check_dense(tensor)
        if not tensor.is_cpu:
            raise ValueError(
                f"all tensors of an operation must be on one device, got cpu and {tensor.device}"
            )


_streams: dict[torch.device, torch.cuda.Stream] = {}


def _copy_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the device's stream for copies from and to the host."""
    stream = _streams.get(device)
    if stream is None:
        stream = _streams.setdefault(device, torch.cuda.Stream(device))  # type: ignore[no-untyped-call]
    return stream


class DeviceArguments:
    """The memory of one operation's CUDA tensors, staged through pinned host memory.

    Inputs are copied on a side stream behind what the current stream has queued so far; `close`
    marks the end of these copies. `copy_back` queues the results on the same side stream.

    Attributes
    ----------
    inputs, outputs
        What the engine reads and writes, once `ready` has happened.
    device, stream
        The device of all tensors, and the side stream.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = _copy_stream(device)
        self.stream.wait_stream(torch.cuda.current_stream(device))
        self.inputs: list[Memory] = []
        self.outputs: list[Memory] = []
        self.copies: list[tuple[Tensor, Tensor]] = []
        self.kept: list[Tensor] = []
        self.ready: torch.cuda.Event

    def add_input(self, tensor: Tensor) -> Tensor:
        """Add a tensor that is read; return its pinned copy."""
        host = self._pinned(tensor)
        self._fetch(tensor, host)
        self.inputs.append((host.data_ptr(), host.nbytes))
        return host

    def add_output(self, tensor: Tensor) -> Tensor:
        """Add a tensor that is only written; return its pinned counterpart."""
        host = self._pinned(tensor)
        self.copies.append((tensor, host))
        self.outputs.append((host.data_ptr(), host.nbytes))
        return host

    def add_in_place(self, tensor: Tensor) -> Tensor:
        """Add a tensor that is read and overwritten; return its pinned copy."""
        host = self.add_output(tensor)
        self._fetch(tensor, host)
        return host

    def close(self) -> None:
        """Mark the end of the copies to the host."""
        self.ready = self.stream.record_event()

    def copy_back(self) -> torch.cuda.Event:
        """Queue the copies to the device; return the event behind them."""
        with torch.no_grad(), torch.cuda.stream(self.stream):
            for tensor, host in self.copies:
                tensor.copy_(host, non_blocking=True)
                tensor.record_stream(self.stream)
        return self.stream.record_event()

    def _pinned(self, tensor: Tensor) -> Tensor:
        _check_dense(tensor)
        if tensor.device != self.device:
            raise ValueError(
                "all tensors of an operation must be on one device, "
                f"got {self.device} and {tensor.device}"
            )
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        self.kept.append(host)
        return host

    def _fetch(self, tensor: Tensor, host: Tensor) -> None:
        with torch.no_grad(), torch.cuda.stream(self.stream):
            host.copy_(tensor, non_blocking=True)
        tensor.record_stream(self.stream)


Arguments = HostArguments | DeviceArguments


def arguments_for(tensor: Tensor) -> Arguments:
    """Return empty arguments for an operation whose tensors are where `tensor` is.

    Raises
    ------
    ValueError
        If gradwire can't reach that device.
    """
    if tensor.is_cpu:
        return HostArguments()
    if tensor.is_cuda:
        return DeviceArguments(tensor.device)
    raise ValueError(f"gradwire moves CPU and CUDA tensors, not those on {tensor.device}")
