"""Data parallel training that hides its communication.

A step's gradients are averaged while the rest of backward and the next forward run. The loop's
`optimizer.step()` only notes that an update is due; each bucket's update takes place when its
gradients have arrived, just before the next forward reads the first of its parameters. Buckets that
the next forward needs sooner overtake those that it needs later. (Priorities and partitions:
ByteScheduler, SOSP 2019; communication under the next forward: DeAR, ICDCS 2023; merging by
start-up cost: MG-WFBP, INFOCOM 2019.)

The memory of a gradient is the engine's from the end of its backward until it is read again; that
is noticed and prevented wherever it can be (see `access`, and `Parallel.step`).
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import _broadcast_coalesced, _verify_params_across_processes
from torch.autograd import Variable
from torch.optim import Optimizer

from gradwire.collectives import Delivery
from gradwire.compression.bucket import in_channel
from gradwire.compression.configuration import CompressionConfig, as_config
from gradwire.compression.operations import gradwire_group
from gradwire.compression.state import CompressionState
from gradwire.parallel.access import Access, AwaitedParameters
from gradwire.parallel.bucket import Bucket, Phase, local
from gradwire.parallel.layout import Member, divide, priority
from gradwire.parallel.link import LinkModel, measure
from gradwire.parallel.optimizer import OptimizerTakeover, joined
from gradwire.parallel.timeline import Timeline

MEASURED_EVERY = 200
"""Steps after which the link is measured again; that step hides nothing."""

_BROADCAST_BYTES = 250 << 20

_numbers = itertools.count()


class Parallel:
    """What `parallelize` returns: the handle of a model in data parallel training.

    Attributes
    ----------
    compression
        How gradients travel, with `decisions()`, `state_dict` and `load_state_dict`.
    link
        What was measured of the link, and the sizes that follow.
    """

    def __init__(
        self,
        module: nn.Module,
        optimizer: Optimizer,
        config: CompressionConfig,
        group: Any,
        find_unused_parameters: bool,
        broadcast_buffers: bool,
        backwards_per_step: int,
    ) -> None:
        if backwards_per_step > 1 and find_unused_parameters:
            raise ValueError("with find_unused_parameters, backwards_per_step can only be 1")
        self.compression = CompressionState(config, group, self.synchronize)
        self._module = module
        self._backend = gradwire_group(group)
        self._process_group: Any = dist.group.WORLD if group is None else group
        self._channel = f"parallel {next(_numbers)}"
        self._finds_unused = find_unused_parameters
        self._backwards_per_step = backwards_per_step
        self._names, self._parameters = _trainable(module)
        _check_fresh(module)
        _check_known(optimizer, self._names, self._parameters)
        self.compression.know(module)
        self._broadcast_state()
        self._buffers = [local(buffer) for buffer in module.buffers()] if broadcast_buffers else []
        self.link: LinkModel = measure(self._backend, self._channel)
        self._takeover = OptimizerTakeover(optimizer, self)
        self._others = self._takeover.others(self._parameters)
        self._lock = threading.RLock()
        self._syncing = True
        self._in_backward = False
        self._updating = False
        self._failure: BaseException | None = None
        self._steps = 0
        self._begins_step = self._begins_round = True
        self._met: dict[int, None] | None = {}
        self._used: _UsedParameters | None = None
        self._last_ready = self._waited = 0.0
        self._timeline = Timeline()
        self._lay_out(range(len(self._parameters)))
        self._access = Access(module, self._settle)
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(self._on_gradient)  # type: ignore[no-untyped-call]
            for parameter in self._parameters
        ]
        self._hooks.append(module.register_forward_pre_hook(self._on_forward))
        module.zero_grad = self.zero_grad  # type: ignore[method-assign]

    # ------------------------------------------------------------- what the user may call

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Inside, gradients are only accumulated, on each rank for itself."""
        outer, self._syncing = self._syncing, False
        try:
            yield
        finally:
            self._syncing = outer

    def synchronize(self) -> None:
        """Wait for all gradients, and update all parameters whose update is due.

        Reading a parameter through its module does so for that parameter. This is for whatever
        reads parameters or gradients in another way.
        """
        with self._lock:
            for bucket in self._buckets:
                self._close(bucket)
            for bucket in self._buckets:
                bucket.is_unread = False

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> Tensor:
        """Clip the averaged gradients by their norm over all parameters; return that norm.

        The norm needs all gradients, so what is not hidden behind backward is waited for here, and
        nothing is hidden behind the next forward. `torch.nn.utils.clip_grad_norm_` on
        `model.parameters()` does the same at the same price.
        """
        with self._lock:
            self._finish_gradients()
            norm: Tensor = nn.utils.clip_grad_norm_(self._parameters, max_norm, norm_type)
            return norm

    def leave(self) -> None:
        """Give model and optimizer back as they were before, up to date.

        After an error that has been raised before, updates that were still due are dropped.
        """
        try:
            if self._failure is None:
                self.synchronize()
        finally:
            for bucket in self._buckets:
                bucket.start_over()
            for hook in self._hooks:
                hook.remove()
            self._hooks.clear()
            self._access.undo()
            self._takeover.undo()
            del self._module.zero_grad
            self._backend.limit_in_flight(None)

    # ------------------------------------------------------------- the optimizer's side

    def before_groups(self) -> None:
        """Finish gradients before somebody looks at the optimizer's parameters (a scaler, say)."""
        if self._updating or self._in_backward:
            return
        with self._lock:
            for bucket in self._buckets:
                if bucket.due is None:  # Settings may change while updates are due.
                    self._finish_reducing(bucket)

    def step(self) -> None:
        """Note that all updates are due; called by the optimizer's `step`."""
        with self._lock:
            self._raise_failure()
            for bucket in self._buckets:
                if bucket.due is not None:
                    self._close(bucket)
            self._check_gradients()
            if self.compression.finishes_together:
                self._finish_gradients()
            settings = self._takeover.settings()
            for bucket in self._buckets:
                bucket.due = settings
            if self._others:
                self._update_now(self._takeover.places(self._others), settings)
            self._steps += 1
            self._begins_step = self._begins_round = True
            if self._takeover.is_scaled or self._met is not None:
                self.synchronize()
            if self._met is not None:
                self._adopt_order(self._met)
                self._met = None
            elif self._steps % MEASURED_EVERY == 0:
                self._measure_again()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Let gradients go, once they have done their work."""
        with self._lock:
            for bucket in self._buckets:
                if bucket.due is not None:
                    bucket.zeroed = set_to_none
                    continue
                self._finish_reducing(bucket)
                self._takeover.parameters_zeroed(bucket.parameters, set_to_none)
                bucket.start_over()
            self._takeover.parameters_zeroed(self._others, set_to_none)
            self._begins_round = True

    def _check_gradients(self) -> None:
        """Refuse a step that some gradients are missing for, or were changed under way."""
        synced = any(bucket.job is not None for bucket in self._buckets)
        for bucket in self._buckets:
            if bucket.phase is Phase.COLLECTING and (synced or bucket.is_partial()):
                missing = ", ".join(bucket.missing_names()[:5])
                raise RuntimeError(
                    f"no gradient for {missing} in this step; if the model does not use all of its "
                    "parameters in each step, pass find_unused_parameters=True to parallelize"
                )
            if bucket.was_changed():
                raise RuntimeError(
                    f"the gradients of {', '.join(bucket.names[:5])} were changed while they were "
                    "being averaged; use parallel.clip_grad_norm_, or call parallel.synchronize() "
                    "before you change gradients"
                )

    # ------------------------------------------------------------- the model's side

    def _on_forward(self, module: nn.Module, _: Any) -> None:
        self._in_backward = False  # It may have ended with an error.
        if not (module.training and torch.is_grad_enabled() and self._begins_step):
            return
        self._begins_step = False
        self._timeline.step_begins()
        if self._buffers:
            self._broadcast(self._buffers)

    def _settle(self, parameter: Tensor) -> None:
        """Bring what is under way with a parameter to its end; it is about to be used."""
        if self._met is not None and not self._in_backward:
            self._met.setdefault(id(parameter))
        bucket = self._bucket_of.get(id(parameter))
        if bucket is None or self._updating:
            return
        if not self._in_backward:
            bucket.is_unread = False
        elif bucket.due is None:
            return  # Its gradient is on its way; backward reads the parameter only.
        if not bucket.is_open:
            return
        with self._lock:
            self._close(bucket)
            self._timeline.enter("forward", bucket.names[0])

    def _on_gradient(self, parameter: Tensor) -> None:
        """Take note that a parameter's gradient is complete in this backward."""
        bucket = self._bucket_of[id(parameter)]
        if bucket.is_open or bucket.is_unread:
            raise RuntimeError(
                f"{bucket.names[0]} was given a gradient while the last one was still in use: "
                "either it was read before the forward by other means than its module (call "
                "parallel.synchronize() before that), or two backwards share it (use "
                "parallel.no_sync() for all but the last)"
            )
        if not self._syncing:
            return
        with self._lock:
            if not self._in_backward:
                self._begin_backward()
            self._timeline.leave("backward", bucket.names[0])
            if bucket.phase is Phase.REDUCED:
                bucket.start_over()  # A second backward adds to averaged gradients.
            if bucket.note_gradient(parameter):
                self._launch(bucket)

    def _begin_backward(self) -> None:
        self._raise_failure()
        Variable._execution_engine.queue_callback(self._end_backward)
        self._in_backward = True
        if self._backwards_per_step == 1:
            self._finish_gradients()
            self._begins_round = True
        if self._finds_unused:
            # All buckets go out after this backward, whatever came of them before.
            self._begin_round()
            for bucket in self._buckets:
                if bucket.phase is Phase.REDUCED:
                    bucket.start_over()

    def _end_backward(self) -> None:
        with self._lock:
            self._in_backward = False
            if not self._finds_unused:
                return
            for bucket in self._buckets:
                if bucket.phase is Phase.COLLECTING:
                    bucket.borrow_missing()
                    self._launch(bucket)
            borrowed = {key for bucket in self._buckets for key in bucket.borrowed}
            with in_channel(self._channel):
                self._used = _UsedParameters(self._backend, self._parameters, borrowed)

    # ------------------------------------------------------------- buckets

    def _begin_round(self) -> None:
        """Gradients are about to be averaged that belong together."""
        self._begins_round = False
        for bucket in self._buckets:
            if bucket.due is not None:
                self._close(bucket)
                bucket.is_unread = True
        self._used = None
        self.compression.begin_step()

    def _launch(self, bucket: Bucket) -> None:
        if self._begins_round:
            self._begin_round()
        self._last_ready, self._waited = time.perf_counter(), 0.0
        try:
            content = bucket.content()
            bucket.job = self.compression.start(content)
        except BaseException as error:
            self._failure = error
            raise
        bucket.phase = Phase.REDUCING
        bucket.note_versions(content.gradients)

    def _finish_gradients(self) -> None:
        for bucket in self._buckets:
            self._finish_reducing(bucket)

    def _finish_reducing(self, bucket: Bucket) -> None:
        """Wait until a bucket's gradients are averaged."""
        if bucket.phase is not Phase.REDUCING:
            return
        if self.compression.finishes_together:
            # Ends that are operations themselves come in one order, whatever is read first here.
            for earlier in self._buckets[: bucket.index]:
                self._finish_one(earlier)
        self._finish_one(bucket)

    def _finish_one(self, bucket: Bucket) -> None:
        if bucket.phase is not Phase.REDUCING:
            return
        self._raise_failure()
        assert bucket.job is not None
        before = time.perf_counter()
        controller = self.compression.controller
        if controller is not None:
            controller.needed(bucket.index, before - self._last_ready - self._waited)
        try:
            bucket.job.finish(drives=True)
            bucket.give_back(self._used)
        except BaseException as error:
            self._failure = error
            raise
        finally:
            self.compression.finished()
        self._waited += time.perf_counter() - before
        bucket.phase = Phase.REDUCED

    def _close(self, bucket: Bucket) -> None:
        """Bring everything that is under way with a bucket to its end.

        Others whose gradients are there are updated with it: optimizers cost by the call.
        """
        self._finish_reducing(bucket)
        if bucket.due is None:
            return
        settings = bucket.due  # Of one step, for all that are due.
        others = [other for other in self._arrived() if other is not bucket]
        for other in others:
            self._finish_reducing(other)
            other.is_unread = True
        self._raise_failure()
        closing = [bucket, *others]
        places = joined(each.places for each in closing)
        if places:
            more = f" and {len(others)} more buckets" if others else ""
            self._timeline.enter("optimizer", bucket.names[0] + more)
            self._update_now(places, settings)
        for each in closing:
            if each.zeroed is not None:
                self._takeover.parameters_zeroed(each.parameters, each.zeroed)
            each.start_over()

    def _arrived(self) -> list[Bucket]:
        """Return the buckets whose update is due and waits for nothing."""
        in_order = self.compression.finishes_together
        return [
            bucket
            for bucket in self._buckets
            if bucket.due is not None
            and (bucket.phase is not Phase.REDUCING or (not in_order and bucket.has_arrived()))
        ]

    def _update_now(self, places: Any, settings: Any) -> None:
        self._updating = True
        try:
            self._takeover.update(places, settings)
        finally:
            self._updating = False

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    # ------------------------------------------------------------- layout

    def _lay_out(self, order: Sequence[int]) -> None:
        """Divide the parameters, given in the order of need, into buckets."""
        members = [
            Member(parameter.nbytes, (parameter.dtype, parameter.device))
            for parameter in (local(self._parameters[index]) for index in order)
        ]
        groups = divide(members, self.link.merged_bytes)
        self._order = list(order)
        self._buckets = []
        for number, group in enumerate(groups):
            indices = [order[place] for place in group]
            names = [self._names[index] for index in indices]
            parameters = [self._parameters[index] for index in indices]
            label = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
            delivery = Delivery(priority(number, len(groups)), self.link.tile_bytes, label)
            places = self._takeover.places(parameters)
            channel = f"{self._channel} bucket {number}"
            backwards = self._backwards_per_step
            self._buckets.append(
                Bucket(number, names, parameters, places, channel, delivery, backwards)
            )
        self._bucket_of = {
            id(parameter): bucket for bucket in self._buckets for parameter in bucket.parameters
        }
        self._backend.limit_in_flight(self.link.in_flight_bytes)

    def _adopt_order(self, met: dict[int, None]) -> None:
        """Lay out anew in the order in which rank 0's forward met the parameters."""
        places = {key: place for place, key in enumerate(met)}
        last = len(places)
        order = sorted(
            range(len(self._parameters)),
            key=lambda index: places.get(id(self._parameters[index]), last),
        )
        shared = torch.tensor(order, dtype=torch.int64)
        if order:
            dist.broadcast(shared, group=self._process_group, group_src=0)
        self._lay_out(shared.tolist())

    def _measure_again(self) -> None:
        self.synchronize()
        link = measure(self._backend, self._channel)
        if link.differs_from(self.link):
            self.link = link
            self._lay_out(self._order)

    def _broadcast_state(self) -> None:
        """Check that all ranks have the same model, and give all of them rank 0's."""
        parameters = [local(parameter).detach() for parameter in self._parameters]
        _verify_params_across_processes(self._process_group, parameters, None)
        state = itertools.chain(self._module.parameters(), self._module.buffers())
        self._broadcast([local(tensor).detach() for tensor in state])

    def _broadcast(self, tensors: list[Tensor]) -> None:
        _broadcast_coalesced(self._process_group, tensors, _BROADCAST_BYTES, 0)


class _UsedParameters:
    """Which parameters any rank has used in a step; one small all-reduce."""

    def __init__(self, backend: Any, parameters: Sequence[Tensor], borrowed: set[int]) -> None:
        self._places = {id(parameter): place for place, parameter in enumerate(parameters)}
        self._flags = torch.tensor(
            [id(parameter) not in borrowed for parameter in parameters], dtype=torch.uint8
        )
        self._work = backend._reduce_in_place("all_reduce", self._flags, dist.ReduceOp.MAX, 0, None)

    def __contains__(self, key: object) -> bool:
        self._work.wait()
        return bool(self._flags[self._places[key]])  # type: ignore[index]


def _trainable(module: nn.Module) -> tuple[list[str], list[Tensor]]:
    named = [(name, one) for name, one in module.named_parameters() if one.requires_grad]
    if not named:
        raise ValueError("the model has no parameter that requires a gradient")
    return [name for name, _ in named], [parameter for _, parameter in named]


def _check_fresh(module: nn.Module) -> None:
    if any(isinstance(child._parameters, AwaitedParameters) for child in module.modules()):
        raise ValueError("the model is parallelized already; leave() that first")


def _check_known(optimizer: Optimizer, names: list[str], parameters: list[Tensor]) -> None:
    known = {id(one) for group in optimizer.param_groups for one in group["params"]}
    strangers = [name for name, one in zip(names, parameters, strict=True) if id(one) not in known]
    if strangers:
        raise ValueError(
            f"the optimizer does not have {', '.join(strangers[:5])}; one optimizer has to have all"
            " parameters that require a gradient (others: requires_grad_(False))"
        )


def parallelize(
    module: nn.Module,
    optimizer: Optimizer,
    compression: str | CompressionConfig = "none",
    *,
    group: Any = None,
    find_unused_parameters: bool = False,
    broadcast_buffers: bool = True,
    backwards_per_step: int = 1,
) -> Parallel:
    """Train a model data parallel, with communication behind backward and the next forward.

    The training loop stays what it is for one process: `loss = model(...)`, `loss.backward()`,
    `optimizer.step()`, `optimizer.zero_grad()`. To be called by all ranks, after the model is on
    its device and compiled, if it is; all start with rank 0's parameters. `Parallel.leave` undoes
    it.

    Parameters
    ----------
    module
        The model, not wrapped by DDP or FSDP.
    optimizer
        Any optimizer that treats parameters independently (not LBFGS).
    compression
        How gradients travel: `none` (bit for bit as plain DDP), `adaptive`, a codec such as
        `int8`, or a `CompressionConfig`.
    group
        A process group of gradwire, the default group if not given; with tensor or pipeline
        parallelism the one of the ranks that hold the same parameters.
    find_unused_parameters
        Whether ranks may leave out parameters in a step.
    broadcast_buffers
        Whether buffers (running means, say) are made rank 0's before each step.
    backwards_per_step
        How many times each parameter is given a gradient before the sum is averaged: the number of
        micro-batches of a pipeline schedule (which must not scale gradients itself then; divide the
        loss), or of gradient accumulation without `no_sync`.

    Returns
    -------
    Parallel
        The handle, with `no_sync()`, `clip_grad_norm_()`, `synchronize()`, `leave()`.

    Raises
    ------
    ValueError
        If the group is not gradwire's, there is nothing to train, or options exclude each other.
    TypeError
        For an optimizer that can't be run bucket by bucket.

    Notes
    -----
    - A gradient scaler (AMP with float16) and clipping need all gradients before the update: then
      communication hides behind backward alone. bfloat16 needs no scaler.
    - Compile blocks (`block.compile()`) rather than the whole model: a compiled region waits for
      all of its parameters before it starts and hands out its gradients when it ends.
    - Checkpoint activations with `use_reentrant=False`.
    - A reference to a parameter taken before (`weight = model.layer.weight`) is not noticed when it
      is read, nor are parameters read from the optimizer's groups; `Parallel.synchronize` first.

    Examples
    --------
    >>> parallel = gradwire.parallelize(model, optimizer, "adaptive")
    """
    if isinstance(module, nn.parallel.DistributedDataParallel):
        raise TypeError("pass the model itself, not DistributedDataParallel around it")
    config = as_config(compression)
    return Parallel(
        module,
        optimizer,
        config,
        group,
        find_unused_parameters,
        broadcast_buffers,
        backwards_per_step,
    )
