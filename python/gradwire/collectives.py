"""Every operation of a c10d process group, on top of one engine communicator.

PyTorch renamed some of these methods between 2.8 and 2.15 (`_allgather_base` became
`all_gather_single`, for instance). Both names are defined; a missing one would silently fall
through to C++, where nothing is registered.

Shapes: `n` is the group's size; "piece r" is what belongs to group rank r.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C._distributed_c10d import AllreduceCoalescedOptions, AllreduceOptions, ReduceOp

from gradwire._native import Handle
from gradwire.element_types import (
    LINEAR,
    OPERATORS,
    REDUCIBLE,
    movable_name,
    operator_name,
    premultiplier,
    reducible_name,
)
from gradwire.futures import OrderedJobs
from gradwire.lineage import CONTEXT, Channel
from gradwire.monitored_barrier import monitored_barrier
from gradwire.sparse import reduce_sparse
from gradwire.staging import Arguments, DeviceArguments, HostArguments, arguments_for, is_direct
from gradwire.work import AsyncWork, DeviceWork, GroupedWork, OperationWork, StagedWork

_ZERO = timedelta(0)
_SUM = ReduceOp.SUM
_POINT_TO_POINT = frozenset({"send", "receive"})


def _limit(options: Any, timeout: timedelta | None = None) -> float | None:
    """Return an operation's own deadline in seconds, `None` for the group's."""
    if timeout is None:
        timeout = getattr(options, "timeout", None)
    return timeout.total_seconds() if timeout is not None and timeout > _ZERO else None


def _operator(options: Any, op: Any) -> Any:
    """Return the reduce operator out of an options object or of an operator given directly."""
    if options is None or isinstance(options, int):
        return _SUM if op is None else op
    return getattr(options, "reduceOp", options)


def _root(options: Any, root: int | None) -> int:
    """Return the root's group rank out of an options object or given directly."""
    if isinstance(options, int):
        return options
    if options is None:
        return 0 if root is None else root
    rank: int = options.rootRank
    return rank


def _as_list(tensors: Tensor | Sequence[Tensor]) -> list[Tensor]:
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)


def _only(tensors: Tensor | Sequence[Tensor], operation: str) -> Tensor:
    """Return the single tensor of a list that c10d passes for historical reasons."""
    if isinstance(tensors, Tensor):
        return tensors
    if len(tensors) != 1:
        raise ValueError(f"{operation} takes one tensor a rank, got {len(tensors)}")
    return tensors[0]


def _nested(tensors: Sequence[Any], operation: str) -> list[Tensor]:
    """Return the pieces out of `[[piece, ...]]` or `[piece, ...]`."""
    if len(tensors) == 1 and not isinstance(tensors[0], Tensor):
        return list(tensors[0])
    if any(not isinstance(tensor, Tensor) for tensor in tensors):
        raise ValueError(f"{operation} takes one list of tensors a rank, got {len(tensors)}")
    return list(tensors)


class Delivery(NamedTuple):
    """How an operation travels beside others.

    Attributes
    ----------
    priority
        Operations with a lower one overtake, 0 to 255; `None` for the usual one.
    tile_bytes
        Size of the pieces between which they overtake, the same on all ranks; `None` for the
        engine's.
    label
        What a timeline calls it.
    """

    priority: int | None = None
    tile_bytes: int | None = None
    label: str | None = None


_USUAL = Delivery()


class Collectives:
    """The operations; mixed into a `ProcessGroup` or a `Backend` of torch.

    Every method starts its operation and returns a `Work`; the same operation must be started by
    every rank of the group in the same order. Tensors may be non-contiguous, empty, on the host
    or on a CUDA device; they must not be changed before the work is over.

    Raises
    ------
    TypeError, ValueError
        If the tensors, the dtype or the operator can't be used. Nothing has been started then.
    GradwireError
        If the group has been aborted or shut down.
    """

    _channel: Channel
    _group_rank: int
    _group_size: int

    def _set_channel(self, channel: Channel, store: Any) -> None:
        self._channel = channel
        self._group_rank = channel.communicator.rank()
        self._group_size = channel.communicator.size()
        self._store = store
        self._submissions: OrderedJobs | None = None
        self._batch: list[AsyncWork] | None = None
        self._monitored_barriers = 0

    def _nested_channel(self, path: str) -> Channel:
        """Return the channel for operations that a callback of lineage `path` starts."""
        raise NotImplementedError

    # ---------------------------------------------------------------- reductions

    def allreduce(
        self,
        tensors: Tensor | Sequence[Tensor],
        opts: Any = None,
        timeout: timedelta | None = None,
        *,
        op: Any = None,
    ) -> AsyncWork:
        """Reduce a tensor over all ranks, in place."""
        if type(opts) is AllreduceOptions and self._submissions is None and self._batch is None:
            tensor = tensors[0]
            operator = OPERATORS.get(opts.reduceOp.op)  # type: ignore[union-attr]
            dtype = REDUCIBLE.get(tensor.dtype)
            if operator and dtype and len(tensors) == 1 and is_direct(tensor):
                limit, path = opts.timeout, CONTEXT.path
                channel = self._channel if path is None else self._nested_channel(path)
                handle = channel.submit(
                    "all_reduce",
                    dtype,
                    operator,
                    [],
                    [(tensor.data_ptr(), tensor.nbytes)],
                    timeout_s=limit.total_seconds() if limit > _ZERO else None,
                    waits_at_once=not opts.asyncOp,
                )
                return OperationWork(handle, tensors, (channel, next(channel.numbers)))  # type: ignore[arg-type]
        tensor = _only(tensors, "all_reduce")
        if tensor.layout is not torch.strided:
            return reduce_sparse(self, tensor, _operator(opts, op))
        return self._reduce_in_place(
            "all_reduce", tensor, _operator(opts, op), 0, _limit(opts, timeout)
        )

    def allreduce_sparse(self, tensors: Sequence[Tensor], opts: Any = None) -> AsyncWork:
        """Reduce a sparse COO tensor over all ranks, in place; only sums."""
        return reduce_sparse(self, _only(tensors, "all_reduce"), _operator(opts, None))

    def allreduce_coalesced(
        self, tensors: Sequence[Tensor], opts: AllreduceCoalescedOptions | None = None
    ) -> AsyncWork:
        """Reduce several tensors over all ranks, each in place."""
        operator, limit = _operator(opts, None), _limit(opts)
        works = [
            self._reduce_in_place("all_reduce", tensor, operator, 0, limit) for tensor in tensors
        ]
        return GroupedWork(works, list(tensors))

    def reduce(
        self,
        tensors: Tensor | Sequence[Tensor],
        opts: Any = None,
        op: Any = None,
        timeout: timedelta | None = None,
        *,
        root: int | None = None,
    ) -> AsyncWork:
        """Reduce a tensor over all ranks; only the root's tensor changes."""
        tensor, limit = _only(tensors, "reduce"), _limit(opts, timeout)
        destination = _root(opts, root)
        return self._reduce_in_place("reduce", tensor, _operator(opts, op), destination, limit)

    def _reduce_in_place(
        self, collective: str, tensor: Tensor, operator: Any, root: int, limit: float | None
    ) -> AsyncWork:
        factor = premultiplier(operator)
        if factor is not None:
            tensor.mul_(factor)
        name = "sum" if factor is not None else operator_name(operator)
        elements = _reducible(tensor, name)
        dtype = reducible_name(elements.dtype)
        arguments = arguments_for(tensor)
        arguments.add_in_place(elements)
        return self._start(collective, dtype, name, arguments, [tensor], root=root, limit=limit)

    def _reduce_with_codec(
        self,
        tensor: Tensor,
        operator: str,
        codec: str | None,
        error: Tensor | None = None,
        delivery: Delivery = _USUAL,
    ) -> AsyncWork:
        """Reduce a tensor (float32 with a codec) over all ranks, in place, perhaps encoded."""
        elements = _reducible(tensor, operator)
        arguments = arguments_for(tensor)
        arguments.add_in_place(elements)
        return self._start(
            "all_reduce",
            reducible_name(elements.dtype),
            operator,
            arguments,
            [tensor],
            codec=codec,
            error=error,
            delivery=delivery,
        )

    def reduce_scatter(
        self,
        output_tensors: Tensor | Sequence[Tensor],
        input_tensors: Sequence[Any],
        opts: Any = None,
        timeout: timedelta | None = None,
        *,
        op: Any = None,
    ) -> AsyncWork:
        """Reduce n pieces over all ranks; rank r's output is piece r."""
        output = _only(output_tensors, "reduce_scatter")
        pieces = _nested(input_tensors, "reduce_scatter")
        self._check_count("reduce_scatter", "input", pieces)
        limit = _limit(opts, timeout)
        return self._reduce_scatter(output, pieces, _operator(opts, op), limit)

    def reduce_scatter_single(
        self,
        output: Tensor,
        input: Tensor,
        opts: Any = None,
        timeout: timedelta | None = None,
        *,
        op: Any = None,
    ) -> AsyncWork:
        """Reduce a tensor of n equal pieces over all ranks; rank r's output is piece r."""
        self._check_ratio("reduce_scatter", whole=input, piece=output)
        limit = _limit(opts, timeout)
        return self._reduce_scatter(output, [input], _operator(opts, op), limit)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None
    ) -> AsyncWork:
        """Several `reduce_scatter_single` that are waited for together."""
        pairs = zip(outputs, inputs, strict=True)
        works = [self.reduce_scatter_single(output, input, opts) for output, input in pairs]
        return GroupedWork(works, list(outputs))

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def _reduce_scatter(
        self,
        output: Tensor,
        inputs: list[Tensor],
        operator: Any,
        limit: float | None,
        codec: str | None = None,
        error: Tensor | None = None,
    ) -> AsyncWork:
        factor = premultiplier(operator)
        if factor is not None:
            inputs = [input * factor for input in inputs]
        name = "sum" if factor is not None else operator_name(operator)
        self._check_dtypes("reduce_scatter", output, *inputs)
        elements = _reducible(output, name)
        dtype = reducible_name(elements.dtype)
        arguments = arguments_for(output)
        for input in inputs:
            arguments.add_input(_reducible(input, name))
        arguments.add_output(elements)
        return self._start(
            "reduce_scatter",
            dtype,
            name,
            arguments,
            [output],
            limit=limit,
            codec=codec,
            error=error,
        )

    # ---------------------------------------------------------------- movements

    def broadcast(
        self,
        tensors: Tensor | Sequence[Tensor],
        opts: Any = None,
        timeout: timedelta | None = None,
        *,
        root: int | None = None,
    ) -> AsyncWork:
        """Overwrite every rank's tensor with the root's."""
        tensor = _only(tensors, "broadcast")
        source, limit = _root(opts, root), _limit(opts, timeout)
        arguments = arguments_for(tensor)
        if source == self._group_rank:
            arguments.add_input(tensor)
            arguments.outputs.append(arguments.inputs.pop())  # In place, but nothing to copy back.
        else:
            arguments.add_in_place(tensor)
        dtype = movable_name(tensor.dtype)
        return self._start("broadcast", dtype, "sum", arguments, [tensor], root=source, limit=limit)

    def allgather(
        self,
        output_tensors: Sequence[Any],
        input_tensors: Tensor | Sequence[Tensor],
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> AsyncWork:
        """Gather every rank's tensor on every rank, into n tensors."""
        pieces = _nested(output_tensors, "all_gather")
        input = _only(input_tensors, "all_gather")
        return self._allgather(pieces, input, _limit(opts, timeout))

    def _allgather(self, pieces: list[Tensor], input: Tensor, limit: float | None) -> AsyncWork:
        self._check_count("all_gather", "output", pieces)
        self._check_alike("all_gather", input, pieces)
        return self._move("all_gather", [input], pieces, limit=limit)

    def allgather_coalesced(
        self,
        output_lists: Sequence[Sequence[Tensor]],
        input_list: Sequence[Tensor],
        opts: Any = None,
    ) -> AsyncWork:
        """Several `allgather` that are waited for together; `output_lists[r]` is rank r's list."""
        self._check_count("all_gather_coalesced", "output", output_lists)
        limit = _limit(opts)
        works = []
        for index, input in enumerate(input_list):
            pieces = [tensors[index] for tensors in output_lists]
            works.append(self._allgather(pieces, input, limit))
        return GroupedWork(works, [tensor for tensors in output_lists for tensor in tensors])

    def all_gather_single(
        self,
        output: Tensor,
        input: Tensor,
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> AsyncWork:
        """Gather every rank's tensor on every rank, into one tensor of n pieces."""
        self._check_ratio("all_gather", whole=output, piece=input)
        return self._move("all_gather", [input], [output], limit=_limit(opts, timeout))

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None
    ) -> AsyncWork:
        """Several `all_gather_single` that are waited for together."""
        pairs = zip(outputs, inputs, strict=True)
        works = [self.all_gather_single(output, input, opts) for output, input in pairs]
        return GroupedWork(works, list(outputs))

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def gather(
        self,
        output_tensors: Sequence[Any],
        input_tensors: Tensor | Sequence[Tensor],
        opts: Any = None,
        timeout: timedelta | None = None,
        *,
        root: int | None = None,
    ) -> AsyncWork:
        """Gather every rank's tensor at the root, into n tensors; others pass no outputs."""
        input = _only(input_tensors, "gather")
        destination = _root(opts, root)
        pieces: list[Tensor] = []
        if destination == self._group_rank:
            pieces = _nested(output_tensors, "gather")
            self._check_count("gather", "output", pieces)
            self._check_alike("gather", input, pieces)
        elif any(len(tensors) > 0 for tensors in output_tensors):
            raise ValueError("gather takes outputs at the root only")
        limit = _limit(opts, timeout)
        return self._move("gather", [input], pieces, root=destination, limit=limit)

    def gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> AsyncWork:
        """Gather every rank's tensor at the root, into one tensor of n pieces."""
        destination = _root(opts, None)
        outputs = []
        if destination == self._group_rank:
            self._check_ratio("gather", whole=output, piece=input)
            outputs = [output]
        return self._move("gather", [input], outputs, root=destination, limit=_limit(opts))

    gather_into_tensor = gather_single

    def scatter(
        self,
        output_tensors: Tensor | Sequence[Tensor],
        input_tensors: Sequence[Any],
        opts: Any = None,
        timeout: timedelta | None = None,
        *,
        root: int | None = None,
    ) -> AsyncWork:
        """Give piece r of the root's n tensors to rank r; others pass no inputs."""
        output = _only(output_tensors, "scatter")
        source = _root(opts, root)
        pieces: list[Tensor] = []
        if source == self._group_rank:
            pieces = _nested(input_tensors, "scatter")
            self._check_count("scatter", "input", pieces)
            self._check_alike("scatter", output, pieces)
        elif any(len(tensors) > 0 for tensors in input_tensors):
            raise ValueError("scatter takes inputs at the root only")
        limit = _limit(opts, timeout)
        return self._move("scatter", pieces, [output], root=source, limit=limit)

    def alltoall(
        self,
        output_tensors: Sequence[Tensor],
        input_tensors: Sequence[Tensor],
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> AsyncWork:
        """Send tensor r of the inputs to rank r; what comes from it is output r. Any shapes."""
        outputs, inputs = _as_list(output_tensors), _as_list(input_tensors)
        self._check_count("all_to_all", "output", outputs)
        self._check_count("all_to_all", "input", inputs)
        return self._move("all_to_all", inputs, outputs, limit=_limit(opts, timeout))

    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_split_sizes: Sequence[int] | None = None,
        input_split_sizes: Sequence[int] | None = None,
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> AsyncWork:
        """Exchange slices of the first dimension, of equal size unless sizes are given."""
        self._check_dtypes("all_to_all", output, input)
        arguments = arguments_for(input)
        sent = arguments.add_input(input)
        received = arguments.add_output(output)
        arguments.inputs[:] = self._slices(sent, input_split_sizes, "input")
        arguments.outputs[:] = self._slices(received, output_split_sizes, "output")
        dtype = movable_name(input.dtype)
        limit = _limit(opts, timeout)
        return self._start("all_to_all", dtype, "sum", arguments, [output], limit=limit)

    alltoall_base = all_to_all_single

    def _slices(
        self, tensor: Tensor, sizes: Sequence[int] | None, what: str
    ) -> list[tuple[int, int]]:
        """Divide a contiguous tensor's memory along the first dimension."""
        rows = tensor.shape[0] if tensor.dim() else 1
        if not sizes:
            if rows % self._group_size:
                raise ValueError(
                    f"all_to_all: {rows} rows of the {what} don't divide evenly among "
                    f"{self._group_size} ranks; pass split sizes"
                )
            sizes = [rows // self._group_size] * self._group_size
        if len(sizes) != self._group_size or sum(sizes) != rows:
            raise ValueError(
                f"all_to_all: the {what} split sizes {list(sizes)} must be {self._group_size} "
                f"numbers that add up to the {rows} rows of the {what}"
            )
        row_bytes = tensor.nbytes // rows if rows else 0
        address = tensor.data_ptr()
        slices = []
        for size in sizes:
            slices.append((address, size * row_bytes))
            address += size * row_bytes
        return slices

    def barrier(self, opts: Any = None, timeout: timedelta | None = None) -> AsyncWork:
        """Pass when every rank has arrived."""
        if isinstance(opts, timedelta):
            opts, timeout = None, opts
        limit = _limit(opts, timeout)
        return self._start("barrier", "u8", "sum", HostArguments(), [], limit=limit)

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        """Pass when every rank has arrived; else rank 0 says who has not."""
        self._monitored_barriers += 1
        limit = self._channel.communicator.timeout() if timeout is None else timeout.total_seconds()
        monitored_barrier(
            self._store,
            self._monitored_barriers,
            self._group_rank,
            self._group_size,
            limit,
            wait_all_ranks,
        )

    # ---------------------------------------------------------------- point to point

    def send(self, tensors: Tensor | Sequence[Tensor], destination: int, tag: int = 0) -> AsyncWork:
        """Send a tensor to a rank of the group, which receives it with the same tag."""
        tensor = _only(tensors, "send")
        arguments = arguments_for(tensor)
        arguments.add_input(tensor)
        dtype = movable_name(tensor.dtype)
        return self._start("send", dtype, "sum", arguments, [tensor], peer=destination, tag=tag)

    def recv(self, tensors: Tensor | Sequence[Tensor], source: int, tag: int = 0) -> AsyncWork:
        """Receive a tensor from a rank of the group."""
        return self._receive(_only(tensors, "recv"), source, tag)

    def recv_anysource(self, tensors: Tensor | Sequence[Tensor], tag: int = 0) -> AsyncWork:
        """Receive a tensor from whichever rank sends one first with this tag."""
        return self._receive(_only(tensors, "recv"), None, tag)

    recvAnysource = recv_anysource  # noqa: N815 - the name that C++ looks up

    def _receive(self, tensor: Tensor, source: int | None, tag: int) -> AsyncWork:
        arguments = arguments_for(tensor)
        arguments.add_output(tensor)
        dtype = movable_name(tensor.dtype)
        return self._start("receive", dtype, "sum", arguments, [tensor], peer=source, tag=tag)

    # ---------------------------------------------------------------- coalescing

    def start_coalescing(self, device: Any = None) -> None:
        """Collect the works of the operations that follow, until `end_coalescing`."""
        self._batch = []

    def end_coalescing(self, device: Any = None) -> AsyncWork:
        """Return one work for all operations since `start_coalescing`."""
        works, self._batch = self._batch or [], None
        return GroupedWork(works, [tensor for work in works for tensor in work._outputs])

    _start_coalescing = start_coalescing
    _end_coalescing = end_coalescing

    # ---------------------------------------------------------------- starting

    def _move(
        self,
        collective: str,
        inputs: list[Tensor],
        outputs: list[Tensor],
        *,
        root: int = 0,
        limit: float | None = None,
        codec: str | None = None,
    ) -> AsyncWork:
        """Start a collective that reduces nothing."""
        first = inputs[0] if inputs else outputs[0]
        self._check_dtypes(collective, *inputs, *outputs)
        dtype = movable_name(first.dtype)
        arguments = arguments_for(first)
        for tensor in inputs:
            arguments.add_input(tensor)
        for tensor in outputs:
            arguments.add_output(tensor)
        return self._start(
            collective, dtype, "sum", arguments, outputs, root=root, limit=limit, codec=codec
        )

    def _start(
        self,
        collective: str,
        dtype: str,
        operator: str,
        arguments: Arguments,
        outputs: list[Tensor],
        *,
        root: int = 0,
        peer: int | None = None,
        tag: int = 0,
        limit: float | None = None,
        codec: str | None = None,
        error: Tensor | None = None,
        delivery: Delivery = _USUAL,
    ) -> AsyncWork:
        """Hand an operation to the engine, on the host at once, on a device behind its copies."""
        is_point_to_point = collective in _POINT_TO_POINT
        if error is not None:
            _check_error(collective, error)
            arguments.kept.append(error)
        path = None if is_point_to_point else CONTEXT.path
        channel = self._channel if path is None else self._nested_channel(path)

        def submit() -> Handle:
            return channel.submit(
                collective,
                dtype,
                operator,
                arguments.inputs,
                arguments.outputs,
                root=root,
                peer=peer,
                tag=tag,
                timeout_s=limit,
                codec=codec,
                error=() if error is None else [(error.data_ptr(), error.nbytes)],
                priority=delivery.priority,
                tile_bytes=delivery.tile_bytes,
                label=delivery.label,
            )

        lineage = None if is_point_to_point else (channel, next(channel.numbers))
        work: AsyncWork
        if isinstance(arguments, DeviceArguments):
            if self._submissions is None:
                self._submissions = OrderedJobs()
            arguments.close()
            work = DeviceWork(submit, self._submissions, outputs, lineage, arguments)
        else:
            if self._submissions is not None:
                # Operations are matched between ranks by their order within the group.
                self._submissions.drain()
            handle = submit()
            if arguments.copies:
                work = StagedWork(handle, outputs, lineage, arguments)
            else:
                work = OperationWork(handle, outputs, lineage, arguments.kept)
        if self._batch is not None:
            self._batch.append(work)
        return work

    # ---------------------------------------------------------------- checks

    def _check_count(self, operation: str, what: str, pieces: Sequence[Any]) -> None:
        if len(pieces) != self._group_size:
            raise ValueError(
                f"{operation}: got {len(pieces)} {what} tensors for {self._group_size} ranks; "
                "pass one for each rank"
            )

    def _check_ratio(self, operation: str, *, whole: Tensor, piece: Tensor) -> None:
        self._check_dtypes(operation, whole, piece)
        if whole.numel() != piece.numel() * self._group_size:
            raise ValueError(
                f"{operation}: {whole.numel()} elements are not {self._group_size} ranks times "
                f"{piece.numel()} elements"
            )

    @staticmethod
    def _check_alike(operation: str, tensor: Tensor, pieces: Sequence[Tensor]) -> None:
        for rank, piece in enumerate(pieces):
            if piece.numel() != tensor.numel():
                raise ValueError(
                    f"{operation}: the tensor for rank {rank} has {piece.numel()} elements, "
                    f"expected {tensor.numel()}"
                )

    @staticmethod
    def _check_dtypes(operation: str, *tensors: Tensor) -> None:
        first = tensors[0].dtype
        for tensor in tensors:
            if tensor.dtype != first:
                raise TypeError(
                    f"{operation}: all tensors must have one dtype, got {first} and {tensor.dtype}"
                )


def _check_error(operation: str, error: Tensor) -> None:
    is_plain = error.dtype == torch.float32 and error.device.type == "cpu"
    if not (is_plain and error.is_contiguous()):
        raise TypeError(f"{operation}: the error tensor must be contiguous float32 on the host")


def _reducible(tensor: Tensor, operator: str) -> Tensor:
    """Return complex tensors as pairs of reals where that reduces to the same result."""
    if not tensor.is_complex():
        return tensor
    if operator not in LINEAR:
        raise TypeError(f"the operator {operator} is not defined for {tensor.dtype} tensors")
    return torch.view_as_real(tensor)
