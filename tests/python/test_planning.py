"""Laws of the adaptive controller's arithmetic: what a plan may never do, whatever was measured."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as some

from gradwire.compression.planning import (
    CANDIDATES,
    ERROR_PER_TOLERANCE,
    NONE,
    WORTHWHILE,
    Costs,
    Plan,
    TensorMeasure,
    choose,
    relative_error,
)

BYTES = {NONE: 4.0, "bf16": 2.0, "int8": 1.01, "int6": 0.77, "int5": 0.64, "int4": 0.54}
LOST = {"bf16": 1e-6, "int8": 6e-5, "int6": 1e-3, "int5": 4e-3, "int4": 1.5e-2}
STEP = 1.0


@some.composite
def measures(draw: some.DrawFn) -> dict[int, TensorMeasure]:
    """Draw tensors of one to three buckets, some of them without any gradient."""
    tensors = {}
    for key in range(draw(some.integers(1, 8))):
        square = draw(some.one_of(some.just(0.0), some.floats(1e-12, 1e6)))
        spread = draw(some.floats(1.0, 10.0))
        tensors[key] = TensorMeasure(
            elements=draw(some.integers(1, 10**8)),
            bucket=key % 3,
            square=square,
            errors={name: spread * square * lost for name, lost in LOST.items()},
            smallest_bits=draw(some.sampled_from([0, 8])),
        )
    return tensors


def planned(tensors: dict[int, TensorMeasure], gigabits: float, tolerance: float) -> Plan:
    """Return the plan among four ranks with links of so many Gbit/s."""
    codec_seconds = dict.fromkeys(CANDIDATES, (1e-10, 1e-10)) | {NONE: (0.0, 0.0)}
    costs = Costs(4, 8e-9 / gigabits, codec_seconds, BYTES)
    return choose(tensors, [0.0, 0.1, 0.2], [0.0] * 3, costs, tolerance, STEP)


links = some.floats(0.01, 400.0)
tolerances = some.floats(1e-6, 1.0)


@settings(max_examples=60, deadline=None)
@given(measures(), links, tolerances)
def test_a_plan_keeps_to_its_budget_and_gains(
    tensors: dict[int, TensorMeasure], gigabits: float, tolerance: float
) -> None:
    plan = planned(tensors, gigabits, tolerance)
    error = relative_error(tensors, plan.codecs)
    assert error <= ERROR_PER_TOLERANCE * tolerance
    assert abs(error - plan.error) <= 1e-9 * error
    compresses = any(codec != NONE for codec in plan.codecs.values())
    gain = plan.exposed_without - plan.exposed
    assert gain >= WORTHWHILE / 2 * STEP if compresses else gain == 0.0
    for key, codec in plan.codecs.items():
        assert 8 * BYTES[codec] >= tensors[key].smallest_bits


@settings(max_examples=40, deadline=None)
@given(measures(), links, tolerances, some.floats(1.0, 100.0))
def test_more_tolerance_never_costs_time(
    tensors: dict[int, TensorMeasure], gigabits: float, tolerance: float, factor: float
) -> None:
    strict = planned(tensors, gigabits, tolerance)
    lenient = planned(tensors, gigabits, factor * tolerance)
    assert lenient.exposed <= strict.exposed + WORTHWHILE * STEP


@settings(max_examples=40, deadline=None)
@given(measures(), links, tolerances, some.sampled_from([2.0**-20, 0.5, 2.0, 2.0**20]))
def test_units_of_the_loss_do_not_matter(
    tensors: dict[int, TensorMeasure], gigabits: float, tolerance: float, scale: float
) -> None:
    """A loss scaled for AMP, or summed instead of averaged, gets the same plan."""
    scaled = {
        key: replace(
            tensor,
            square=scale * tensor.square,
            errors={name: scale * error for name, error in tensor.errors.items()},
        )
        for key, tensor in tensors.items()
    }
    plan, other = planned(tensors, gigabits, tolerance), planned(scaled, gigabits, tolerance)
    assert plan.exposed == other.exposed
