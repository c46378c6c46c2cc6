"""Which codec for which tensor: pure arithmetic on what was measured.

The plan minimises the communication that stays exposed, subject to a budget of error. Error is
counted as the optimizer sees it: each tensor's squared error over its squared mean gradient, so
that a small gradient counts as much as a large one (Adam divides by the root of the second moment).

That share is how many more steps training needs. A step gets as far as `|G|^2 / (|G|^2 + noise)`
of one without noise (McCandlish et al. 2018, An Empirical Model of Large-Batch Training, arXiv
1812.06162, section 2), the mean gradient's expected square is `|G|^2 + noise`, and an error adds to
its noise. Where noise rules, as in most of training, it is the error over the noise.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

NONE = "none"
CANDIDATES = (NONE, "bf16", "int8", "int6", "int5", "int4")
"""What the controller chooses among, from the gentlest to the smallest."""

ERROR_PER_TOLERANCE = 4.0
"""Budget of error over the squared gradient, for each unit of loss tolerance.

In paired runs of small GPTs 2 % (int4) cost about 0.26 % of loss, 0.15 % (int6) cost 0.015 %: some
0.13 % of loss for each percent. Half of that room is left unused."""

WORTHWHILE = 0.02
"""Compression must save this part of a step, or it is not worth its risk."""


@dataclass
class TensorMeasure:
    """What is known of one parameter's gradient.

    Attributes
    ----------
    elements
        Number of elements.
    bucket
        Index of the bucket it travels in.
    square
        Squared norm of the mean gradient, its noise included.
    errors
        For each codec the expected squared norm of what it adds to the mean gradient.
    smallest_bits
        Codecs with fewer bits are not used for it.
    """

    elements: int
    bucket: int
    square: float = 0.0
    errors: dict[str, float] = field(default_factory=dict)
    smallest_bits: int = 0


@dataclass(frozen=True)
class Costs:
    """What communication costs here.

    Attributes
    ----------
    ranks
        Number of ranks.
    seconds_per_byte
        Of the wire, for each rank's own traffic; what operations cost without any bytes is spread
        over them.
    codec_seconds
        For each codec: seconds to encode an element, and to decode one.
    bytes_per_element
        For each codec, on the wire.
    """

    ranks: int
    seconds_per_byte: float
    codec_seconds: Mapping[str, tuple[float, float]]
    bytes_per_element: Mapping[str, float]

    def seconds(self, codec: str, elements: int) -> float:
        """Return how long a tensor keeps the wire and the codec busy, with its two hops."""
        others = (self.ranks - 1) / self.ranks
        wire = 2 * others * elements * self.bytes_per_element[codec] * self.seconds_per_byte
        encode, decode = self.codec_seconds[codec]
        return wire + elements * (encode + 2 * others * decode)


@dataclass(frozen=True)
class Plan:
    """A codec for each tensor, and what is expected of it.

    Attributes
    ----------
    codecs
        By tensor.
    exposed, exposed_without
        Seconds of communication that computation does not hide, with and without compression.
    error, budget
        Error over the squared gradient, and how much is allowed.
    reason
        Why this one, in words.
    saved, errors
        Why for each tensor: seconds that its codec spares the wire, and its error over its squared
        gradient.
    """

    codecs: dict[int, str]
    exposed: float
    exposed_without: float
    error: float
    budget: float
    reason: str
    saved: dict[int, float] = field(default_factory=dict)
    errors: dict[int, float] = field(default_factory=dict)


def exposed_seconds(
    ready: Sequence[float], durations: Sequence[float], needed: Sequence[float] | None = None
) -> float:
    """Return for how long computation waits for buckets.

    Parameters
    ----------
    ready
        When each bucket is ready.
    durations
        How long it keeps the wire busy.
    needed
        How long after the last one is ready each is needed, if nothing has to be waited for; those
        needed first have the wire first. Not given: all are needed at once, and have the wire in
        the order in which they are ready.
    """
    if not ready:
        return 0.0
    if needed is None:
        needed = [0.0] * len(ready)
        urgency: Sequence[float] = ready
    else:
        urgency = needed
    ends = _ends(ready, durations, urgency)
    last, delay = max(ready), 0.0
    for bucket in sorted(range(len(ready)), key=needed.__getitem__):
        delay = max(delay, ends[bucket] - last - needed[bucket])
    return delay


def _ends(
    ready: Sequence[float], durations: Sequence[float], urgency: Sequence[float]
) -> list[float]:
    """Return when each bucket has had the wire, which the most urgent one always has."""
    arrivals = sorted(range(len(ready)), key=ready.__getitem__)
    left, ends = list(durations), [0.0] * len(ready)
    waiting: list[tuple[float, int]] = []
    now = 0.0
    for place, bucket in enumerate(arrivals):
        now = max(now, ready[bucket])
        heapq.heappush(waiting, (urgency[bucket], bucket))
        follows = place + 1 < len(arrivals)
        until = ready[arrivals[place + 1]] if follows else math.inf
        while waiting and now < until:
            first = waiting[0][1]
            passed = min(left[first], until - now)
            left[first] -= passed
            now += passed
            if left[first] <= 0:
                heapq.heappop(waiting)
                ends[first] = now
    return ends


def relative_error(tensors: Mapping[int, TensorMeasure], codecs: Mapping[int, str]) -> float:
    """Return the squared error over each tensor's squared gradient, a mean over all elements."""
    known = {key: tensor for key, tensor in tensors.items() if tensor.square > 0}
    elements = sum(tensor.elements for tensor in known.values())
    if elements == 0:
        return 0.0
    return sum(
        tensor.elements / elements * tensor.errors.get(codecs[key], 0.0) / tensor.square
        for key, tensor in known.items()
    )


def choose(
    tensors: Mapping[int, TensorMeasure],
    ready: Sequence[float],
    fixed: Sequence[float],
    costs: Costs,
    tolerance: float,
    step_seconds: float,
    error_factor: float = 1.0,
    needed: Sequence[float] | None = None,
) -> Plan:
    """Choose a codec for each tensor.

    Parameters
    ----------
    tensors
        What is known of the tensors that may be compressed, by key.
    ready
        When each bucket is ready, in seconds since the first.
    fixed
        Seconds that the rest of each bucket takes, whatever is chosen.
    costs
        What communication costs here.
    tolerance
        How far the final loss may be off, relative.
    step_seconds
        How long a step takes.
    error_factor
        How much larger errors turned out to be than was predicted.
    needed
        When each bucket is needed, see `exposed_seconds`.
    """
    budget = ERROR_PER_TOLERANCE * tolerance

    def outcome(codecs: dict[int, str]) -> tuple[float, float]:
        durations = list(fixed)
        for key, tensor in tensors.items():
            durations[tensor.bucket] += costs.seconds(codecs[key], tensor.elements)
        error = error_factor * relative_error(tensors, codecs)
        return exposed_seconds(ready, durations, needed), error

    raw = dict.fromkeys(tensors, NONE)
    exposed_raw, _ = outcome(raw)
    best = Plan(raw, exposed_raw, exposed_raw, 0.0, budget, "")
    tried = [best]
    for exponent in range(-60, 61):
        codecs = _cheapest(tensors, costs, 10.0 ** (exponent / 5))
        exposed, error = outcome(codecs)
        if error <= budget:
            tried.append(Plan(codecs, exposed, exposed_raw, error, budget, ""))
    least = min(plan.exposed for plan in tried)
    if exposed_raw - least < WORTHWHILE * step_seconds:
        reason = (
            f"compression would save {exposed_raw - least:.4f} s of {step_seconds:.4f} s a step"
        )
        return Plan(raw, exposed_raw, exposed_raw, 0.0, budget, reason)
    enough = [plan for plan in tried if plan.exposed <= least + WORTHWHILE / 2 * step_seconds]
    gentlest = min(enough, key=lambda plan: (plan.error, plan.exposed))
    reason = (
        f"exposed {exposed_raw:.4f} s -> {gentlest.exposed:.4f} s a step, relative error "
        f"{gentlest.error:.2e} of {budget:.2e}"
    )
    saved, errors = {}, {}
    for key, tensor in tensors.items():
        codec = gentlest.codecs[key]
        saved[key] = costs.seconds(NONE, tensor.elements) - costs.seconds(codec, tensor.elements)
        errors[key] = error_factor * relative_error({key: tensor}, gentlest.codecs)
    return replace(gentlest, reason=reason, saved=saved, errors=errors)


def _cheapest(
    tensors: Mapping[int, TensorMeasure], costs: Costs, seconds_per_error: float
) -> dict[int, str]:
    """Return for each tensor the codec with the least time plus priced error."""
    chosen = {}
    for key, tensor in tensors.items():
        price = seconds_per_error * tensor.elements / tensor.square if tensor.square > 0 else 0.0

        def cost(codec: str, tensor: TensorMeasure = tensor, price: float = price) -> float:
            seconds = costs.seconds(codec, tensor.elements)
            return seconds + price * tensor.errors.get(codec, 0.0)

        allowed = [
            codec
            for codec in CANDIDATES
            if (codec == NONE or codec in tensor.errors)
            and 8 * costs.bytes_per_element[codec] >= tensor.smallest_bits
        ]
        chosen[key] = min(allowed, key=cost)
    return chosen
