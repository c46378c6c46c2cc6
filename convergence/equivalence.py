"""Whether two ways of training end alike: paired differences and two one-sided tests.

Equivalence is claimed as Schuirmann 1987 has it (J. Pharmacokin. Biopharm. 15, 657): the 90 %
interval of the mean paired difference lies inside the margin, which is both one-sided tests at 5 %.
"""

from __future__ import annotations

import bisect
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

MARGIN = 0.1
"""Per cent of the reference's loss within which an arm counts as equivalent."""

CONFIDENCE = 0.90
POWER = 0.90
SMALLEST_PAIRS = 8
"""Fewer pairs say nothing, however small their spread happens to be."""


@dataclass(frozen=True)
class Comparison:
    """An arm against the reference; all figures in per cent of the reference's loss.

    Attributes
    ----------
    pairs
        Number of seeds that both have.
    mean, deviation
        Of the paired changes; the deviation is NaN for one pair.
    low, high
        The 90 % interval of the mean; infinite for one pair.
    """

    pairs: int
    mean: float
    deviation: float
    low: float
    high: float

    def verdict(self, margin: float = MARGIN) -> str:
        """Return `inside` or `outside` where the interval shows it, `not shown` where not."""
        if self.low > margin or self.high < -margin:
            return "outside"
        if self.pairs >= SMALLEST_PAIRS and -margin < self.low and self.high < margin:
            return "inside"
        return "not shown"


def relative_changes(losses: Sequence[float], references: Sequence[float]) -> list[float]:
    """Return each loss's change against the same seed's reference, in per cent."""
    pairs = zip(losses, references, strict=True)
    return [100 * (loss / reference - 1) for loss, reference in pairs]


def compare(changes: Sequence[float]) -> Comparison:
    """Summarise paired changes.

    Parameters
    ----------
    changes
        One per seed, in per cent; at least one.
    """
    pairs, mean = len(changes), statistics.fmean(changes)
    if pairs < 2:
        return Comparison(pairs, mean, math.nan, -math.inf, math.inf)
    deviation = statistics.stdev(changes)
    half = t_quantile(0.5 + CONFIDENCE / 2, pairs - 1) * deviation / math.sqrt(pairs)
    return Comparison(pairs, mean, deviation, mean - half, mean + half)


def pairs_needed(deviation: float, margin: float = MARGIN, most: int = 10_000) -> int | None:
    """Return how many pairs show equivalence with 90 % power if there is no true change.

    Parameters
    ----------
    deviation
        Standard deviation of the paired changes.
    margin
        What the change must stay within, in the same unit.
    most
        Return `None` if more would be needed.
    """

    def half_width(pairs: int) -> float:
        # Both one-sided tests must reject, so each may fail in half of the cases that are left.
        freedom = pairs - 1
        needed = t_quantile(0.5 + CONFIDENCE / 2, freedom) + t_quantile(0.5 + POWER / 2, freedom)
        return needed * deviation / math.sqrt(pairs)

    if half_width(most) > margin:
        return None
    # The width falls with every pair.
    candidates = range(SMALLEST_PAIRS, most + 1)
    return candidates[bisect.bisect_left(candidates, -margin, key=lambda n: -half_width(n))]


def t_quantile(probability: float, freedom: int) -> float:
    """Return the quantile of Student's t, by bisection.

    Parameters
    ----------
    probability
        Between 0 and 1, both excluded.
    freedom
        Degrees of freedom, at least 1.
    """
    if probability < 0.5:
        return -t_quantile(1 - probability, freedom)
    low, high = 0.0, 1.0
    while _t_distribution(high, freedom) < probability:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        if _t_distribution(middle, freedom) < probability:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _t_distribution(value: float, freedom: int) -> float:
    """Return the distribution function of Student's t: Abramowitz and Stegun, 26.7.3 and 26.7.4."""
    angle = math.atan(value / math.sqrt(freedom))
    odd = freedom % 2
    term = math.cos(angle) if odd else 1.0
    total = term if freedom > 1 or not odd else 0.0
    for index in range(2 + odd, freedom - 1, 2):
        term *= math.cos(angle) ** 2 * (index - 1) / index
        total += term
    within = math.sin(angle) * total
    return 0.5 + (2 / math.pi * (angle + within) if odd else within) / 2
