"""The adaptive controller: measures, plans, watches, and plans again.

Everything it decides from is reduced over the ranks first, or is a reduced gradient, which is the
same on all of them: so all ranks switch on the same step. `planning.py` has the arithmetic,
`measuring.py` what is measured of gradients and codecs, `watching.py` what calls for another plan.
"""

from __future__ import annotations

import logging
import math
import statistics
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gradwire import tracing
from gradwire.compression.checkpoint import Named, by_name, check_known
from gradwire.compression.configuration import CompressionConfig
from gradwire.compression.measuring import CodecMeter
from gradwire.compression.planning import (
    CANDIDATES,
    NONE,
    WORTHWHILE,
    Costs,
    Plan,
    TensorMeasure,
    choose,
)
from gradwire.compression.watching import GradientWatch, LinkWatch, Vote

_log = logging.getLogger("gradwire.compression")

FIRST_PLAN = 4
"""The step after which there is a first plan; that step is measured."""

INTERVALS = (10, 20, 50)
"""Steps to the next plan; the last one again and again. Early on gradients change fast."""

ALARM_STEPS = 10
"""Steps without compression after an alarm."""

EMBEDDING_ASPECT = 8
"""Where the model is not known, a matrix with so many times more rows than columns is taken for an
embedding."""

_BY_TENSOR = ("codecs", "saved", "errors")
"""Parts of a plan that are tables over tensors."""

From = TypeVar("From")
To = TypeVar("To")
Value = TypeVar("Value")


class Controller:
    """Chooses codecs for the parameters of one hook.

    Parameters
    ----------
    config
        The tolerance, and what never is compressed.
    group
        The process group, gradwire's.
    """

    def __init__(self, config: CompressionConfig, group: Any) -> None:
        self._config = config
        self._group = group
        self._meter = CodecMeter(CANDIDATES)
        self._lock = threading.Lock()
        self._step = 1
        self._planned_step = FIRST_PLAN
        self._plans = 0
        self._plan: Plan | None = None
        self._alarm_until = 0
        self._gradients = GradientWatch()
        self._link = LinkWatch()
        self._vote = Vote(group)
        self._residuals_grow = False
        self._error_factor = 1.0
        self._measured_errors: dict[int, float] = {}
        self._seconds_per_byte = 0.0
        self._keys: dict[int, int] = {}
        self._shapes: list[tuple[int, ...]] = []
        self._names: dict[int, str] = {}
        self._embeddings: set[int] | None = None
        self._buckets = 0
        self._began = 0.0
        self._recent: deque[float] = deque(maxlen=9)  # Pauses between steps must not count.
        self._start_step()

    def _start_step(self) -> None:
        self._measures: dict[int, TensorMeasure] = {}
        self._local: dict[int, Tensor] = {}
        self._spread: dict[int, float] = {}
        self._fixed_bytes: dict[int, int] = {}
        self._wire_bytes: dict[int, float] = {}
        self._ready: dict[int, float] = {}
        self._done: dict[int, float] = {}
        self._needed: dict[int, float] = {}
        self._squares: dict[int, float] = {}
        self._finite = True
        self._checked = (0.0, 0.0)

    # ------------------------------------------------------------- the hook's side

    def know(self, module: nn.Module) -> None:
        """Learn the model's parameters, which are the same on all ranks, and which embed."""
        for name, parameter in module.named_parameters():
            if parameter.requires_grad:
                self._names[self._key(parameter)] = name
        kinds = (nn.Embedding, nn.EmbeddingBag)
        embeddings = (child for child in module.modules() if isinstance(child, kinds))
        self._embeddings = {self._key(embedding.weight) for embedding in embeddings}

    @property
    def is_measured(self) -> bool:
        """Whether this step is measured: the one that a plan follows."""
        return self._step == self._planned_step

    def codec(self, parameter: Tensor) -> str:
        """Return how a parameter's gradient travels in this step."""
        if self._plan is None or self._step < self._alarm_until:
            return NONE
        return self._plan.codecs.get(self._key(parameter), NONE)

    def before(
        self, bucket: int, parameters: Sequence[Tensor], gradients: Sequence[Tensor]
    ) -> None:
        """Look at a bucket's local gradients before they are reduced."""
        now = time.perf_counter()
        if not self._ready:
            self._vote.ask(self._link.has_changed, self._residuals_grow)
        fixed = 0
        for parameter, gradient in zip(parameters, gradients, strict=True):
            key = self._key(parameter)
            if not self._may_be_compressed(parameter, gradient):
                fixed += gradient.nbytes
            elif self.is_measured:
                measure = TensorMeasure(gradient.numel(), bucket)
                measure.smallest_bits = self._smallest_bits(parameter)
                measure.errors = self._meter.relative_errors(gradient)
                self._measures[key] = measure
                self._local[key] = gradient.clone()
        self._fixed_bytes[bucket] = fixed
        self._wire_bytes[bucket] = fixed + sum(
            gradient.numel() * self._meter.bytes_per_element[self.codec(parameter)]
            for parameter, gradient in zip(parameters, gradients, strict=True)
            if self._may_be_compressed(parameter, gradient)
        )
        self._ready[bucket] = now

    def needed(self, bucket: int, seconds: float) -> None:
        """Note when a bucket is needed, if not as soon as all are ready.

        Parameters
        ----------
        bucket
            The bucket's index.
        seconds
            How long after the last bucket was ready, without the time spent waiting for others.
        """
        self._needed.setdefault(bucket, max(0.0, seconds))

    def after(
        self, bucket: int, parameters: Sequence[Tensor], gradients: Sequence[Tensor], done: float
    ) -> None:
        """Look at a bucket's reduced gradients; called by one thread for each bucket."""
        total = 0.0
        for parameter, gradient in zip(parameters, gradients, strict=True):
            square = float(torch.linalg.vector_norm(gradient)) ** 2
            total += square
            key = self._key(parameter)
            if key in self._measures:
                self._measures[key].square = square
                difference = self._local[key] - gradient
                self._spread[key] = float(torch.linalg.vector_norm(difference)) ** 2
        # Of the last step's number: how many are ready by now differs between ranks.
        if self.is_measured and bucket == self._plans % max(1, self._buckets):
            self._check(parameters, gradients)
        with self._lock:
            self._done[bucket] = done
            self._squares[bucket] = total
            self._finite &= math.isfinite(total)

    def _check(self, parameters: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
        """Reduce a bucket once more without a codec, and note the true and predicted errors."""
        keys = [self._key(parameter) for parameter in parameters]
        compressed = [at for at, key in enumerate(keys) if key in self._local]
        compressed = [at for at in compressed if self.codec(parameters[at]) != NONE]
        if not compressed:
            return
        exact = torch.cat([self._local[keys[at]] for at in compressed])
        work = self._group._reduce_in_place("all_reduce", exact, dist.ReduceOp.AVG, 0, None)
        work._outcome()
        true = predicted = 0.0
        pieces = exact.split([gradients[at].numel() for at in compressed])
        for at, piece in zip(compressed, pieces, strict=True):
            key, codec = keys[at], self.codec(parameters[at])
            error = float(torch.linalg.vector_norm(gradients[at] - piece)) ** 2
            square = float(torch.linalg.vector_norm(gradients[at])) ** 2
            encoded = _encoded_square(square, self._spread[key], self._group.size())
            true += error
            predicted += self._measures[key].errors.get(codec, 0.0) * encoded
            if square > 0:
                self._measured_errors[key] = error / square
        self._checked = (true, predicted)

    def end_step(self, residual_norm: float = 0.0) -> None:
        """All buckets of the step are reduced: look at it as a whole, and perhaps plan.

        Parameters
        ----------
        residual_norm
            Of all that this rank has kept back by now.
        """
        now = time.perf_counter()
        if self._began:
            self._recent.append(now - self._began)
        self._began = now
        if self._ready:
            self._watch(residual_norm)
            if self.is_measured and self._measures and self._finite and self._recent:
                self._make_plan(statistics.median(self._recent))
            elif self.is_measured:
                self._planned_step += 1
            self._step += 1
            self._buckets = len(self._ready)
        self._start_step()

    # ------------------------------------------------------------- watching

    def _watch(self, residual_norm: float) -> None:
        """Raise precision at once when gradients surprise, and plan anew when the link does."""
        # Summed in the same order on all ranks: they must come to the same conclusion.
        square = sum(self._squares[bucket] for bucket in sorted(self._squares))
        alarm = self._gradients.alarm(math.sqrt(square) if self._finite else math.inf)
        link_changed, residuals_grow = self._vote.outcome() or (False, False)
        if alarm is None and residuals_grow and self._step >= self._alarm_until:
            alarm = "more is kept back for error feedback than a usual gradient has"
        if alarm is not None:
            self._alarm_until = self._step + 1 + ALARM_STEPS
            self._planned_step = self._alarm_until
            self._tell(logging.WARNING, "alarm", f"{alarm}; no compression for {ALARM_STEPS} steps")
        elif link_changed and not self.is_measured and self._step >= self._alarm_until:
            self._planned_step = self._step + 1
            why = "the link has changed; the next step is measured"
            self._tell(logging.INFO, "link changed", why)
        if alarm is not None or link_changed or self.is_measured:
            self._link.restart()
        else:
            self._note_link()
        self._residuals_grow = self._gradients.is_too_much(residual_norm)

    def _note_link(self) -> None:
        busy, traffic = self._busy_seconds(), self._traffic()
        if self._recent and traffic and busy > WORTHWHILE * statistics.median(self._recent):
            self._link.note(busy / traffic)

    # ------------------------------------------------------------- planning

    def _make_plan(self, seconds: float) -> None:
        buckets = sorted(self._ready)
        keys = sorted(self._measures)
        self._measures = {key: self._measures[key] for key in keys}
        names = [name for name in CANDIDATES if name != NONE]
        busy, traffic = self._busy_seconds(), self._traffic()
        first = self._ready[buckets[0]]
        own = [seconds, busy, *self._checked, *self._meter.seconds(names)]
        own += [self._ready[bucket] - first for bucket in buckets]
        own += [self._needed.get(bucket, 0.0) for bucket in buckets]
        for key in keys:
            measure = self._measures[key]
            own += [self._spread[key], *(measure.errors.get(name, 0.0) for name in names)]
        reduced = torch.tensor(own, dtype=torch.float64)
        work = self._group._reduce_in_place("all_reduce", reduced, dist.ReduceOp.AVG, 0, None)
        work.wait()
        means = iter(reduced.tolist())
        seconds, busy = next(means), next(means)
        true, predicted = next(means), next(means)
        codec_seconds = {name: (next(means), next(means)) for name in names}
        ready = [next(means) for _ in buckets]
        needed = [next(means) for _ in buckets]
        ranks = self._group.size()
        for key in keys:
            measure = self._measures[key]
            spread = next(means)
            measure.errors = {
                name: next(means) * _encoded_square(measure.square, spread, ranks) for name in names
            }
        measured = busy / traffic if traffic else 0.0
        self._seconds_per_byte = measured or self._seconds_per_byte
        if predicted > 0:
            self._error_factor = min(100.0, max(0.5, true / predicted))
        costs = Costs(
            ranks,
            self._seconds_per_byte,
            {NONE: (0.0, 0.0), **codec_seconds},
            self._meter.bytes_per_element,
        )
        fixed = [
            2 * (ranks - 1) / ranks * self._fixed_bytes[bucket] * self._seconds_per_byte
            for bucket in buckets
        ]
        # A bucket's place in the lists, which all ranks have in the same order, is its index.
        plan = choose(
            self._measures,
            ready,
            fixed,
            costs,
            self._config.tolerance,
            seconds,
            self._error_factor,
            needed if any(needed) else None,
        )
        self._plan = plan
        self._planned_step += INTERVALS[min(self._plans, len(INTERVALS) - 1)]
        self._plans += 1
        codecs = {self._name(key): codec for key, codec in sorted(plan.codecs.items())}
        self._tell(logging.INFO, f"plan {self._plans}", plan.reason, codecs)

    def _tell(
        self, level: int, what: str, why: str, codecs: Mapping[str, str] | None = None
    ) -> None:
        """Put a decision into the log, and into the trace if there is one."""
        table = "" if codecs is None else f"\n{self.table()}"
        _log.log(level, "step %d: %s%s", self._step, why, table)
        arguments = {} if codecs is None else {"codecs": codecs}
        tracing.instant(what, "compression", step=self._step, why=why, **arguments)

    def _busy_seconds(self) -> float:
        """Return how long at least one bucket was on its way."""
        busy, free = 0.0, 0.0
        for bucket in sorted(self._ready, key=self._ready.__getitem__):
            start, end = max(free, self._ready[bucket]), self._done[bucket]
            busy += max(0.0, end - start)
            free = max(free, end)
        return busy

    def _traffic(self) -> float:
        """Return the bytes that this rank has sent in this step."""
        ranks = self._group.size()
        return 2 * (ranks - 1) / ranks * sum(self._wire_bytes.values())

    # ------------------------------------------------------------- what it says

    def table(self) -> str:
        """Return what was chosen for which tensor, and why.

        For each tensor: how much time its codec spares the wire, what error it was expected to add
        (over the squared gradient), and what it did add when it last travelled uncompressed too.
        """
        plan = self._plan
        if plan is None:
            return f"no plan before step {FIRST_PLAN}; gradients travel uncompressed"
        link = 8e-9 / self._seconds_per_byte if self._seconds_per_byte else math.inf
        lines = [
            f"plan {self._plans}: {plan.reason}",
            f"link {link:.2f} Gbit/s a rank, errors {self._error_factor:.2f} times those predicted",
            f"{'tensor':<40}{'shape':>14}  codec  saves ms  predicted     error",
        ]
        for key, codec in sorted(plan.codecs.items()):
            shape = "x".join(map(str, self._shapes[key]))
            saved, predicted = plan.saved.get(key, 0.0), plan.errors.get(key, 0.0)
            error = self._measured_errors.get(key)
            measured = "" if error is None or codec == NONE else f"{error:10.1e}"
            choice = f"{codec:<5}{1e3 * saved:>10.2f}{predicted:>11.1e}{measured}"
            lines.append(f"{self._name(key):<40}{shape:>14}  {choice}")
        return "\n".join(lines)

    def _name(self, key: int) -> str:
        return self._names.get(key, f"parameter {key}")

    def state_dict(self, parameters: Named) -> dict[str, Any]:
        """Return what a resumed run starts from; tensors go by their parameters' names."""
        names = {key: name for name, key in by_name(self._keys, parameters).items()}
        plan = None if self._plan is None else asdict(self._plan)
        if plan is not None:
            plan |= {part: _renamed(plan[part], names) for part in _BY_TENSOR}
        return {
            "step": self._step,
            "planned_step": self._planned_step,
            "plans": self._plans,
            "plan": plan,
            "alarm_until": self._alarm_until,
            "usual_norm": self._gradients.usual_norm,
            "residuals_grow": self._residuals_grow,
            "error_factor": self._error_factor,
            "measured_errors": _renamed(self._measured_errors, names),
            "seconds_per_byte": self._seconds_per_byte,
        }

    def load_state_dict(
        self, state: Mapping[str, Any], parameters: Named, *, resized: bool = False
    ) -> None:
        """Go on where a saved run was; all ranks load what was saved in the same step.

        Parameters
        ----------
        state
            What `state_dict` returned.
        parameters
            The model's, in the same order on all ranks.
        resized
            Whether it comes from a run with another number of ranks. Its plan was for that number,
            and so was what it measured: the next step is measured, and planned for.
        """
        keys = {name: self._key(one) for name, one in parameters if one.requires_grad}
        plan = None if resized else state["plan"]
        if plan is not None:
            check_known(plan["codecs"], keys)
            plan = Plan(**plan | {part: _renamed(plan[part], keys) for part in _BY_TENSOR})
        self._plan = plan
        self._step = state["step"]
        self._plans = state["plans"]
        self._alarm_until = state["alarm_until"]
        self._gradients.usual_norm = state["usual_norm"]
        self._link.restart()
        self._start_step()
        if resized:
            self._planned_step = max(self._step, self._alarm_until, FIRST_PLAN)
            return
        self._planned_step = state["planned_step"]
        self._residuals_grow = state["residuals_grow"]
        self._error_factor = state["error_factor"]
        self._measured_errors = _renamed(state["measured_errors"], keys)
        self._seconds_per_byte = state["seconds_per_byte"]

    # ------------------------------------------------------------- tensors

    def _key(self, parameter: Tensor) -> int:
        """Return a parameter's number, in the order in which they were met: alike on all ranks."""
        key = self._keys.get(id(parameter))
        if key is None:
            key = self._keys[id(parameter)] = len(self._keys)
            self._shapes.append(tuple(parameter.shape))
        return key

    def _may_be_compressed(self, parameter: Tensor, gradient: Tensor) -> bool:
        return gradient.dtype == torch.float32 and self._config.may_compress(parameter)

    def _smallest_bits(self, parameter: Tensor) -> int:
        """Return how many bits a parameter needs at least."""
        if self._embeddings is not None:
            embeds = self._key(parameter) in self._embeddings
        else:
            rows, columns = parameter.shape[0], parameter.shape[1:].numel()
            embeds = parameter.dim() > 1 and rows >= EMBEDDING_ASPECT * columns
        return self._config.embedding_bits if embeds else 0


def _renamed(table: Mapping[From, Value], names: Mapping[From, To]) -> dict[To, Value]:
    return {names[key]: value for key, value in table.items()}


def _encoded_square(square: float, spread: float, ranks: int) -> float:
    """Return the square that a codec's relative error is of, in a mean of gradients.

    Each rank's contribution is encoded once, independently, and their mean once more.

    Parameters
    ----------
    square
        Squared norm of the mean gradient.
    spread
        Squared distance of one rank's gradient from it.
    ranks
        Number of ranks.
    """
    local = square + spread * ranks / max(1, ranks - 1)
    return local / ranks + square
