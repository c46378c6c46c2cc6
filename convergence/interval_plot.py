"""The arms' intervals as an SVG file: a row an arm, a dot a seed, a bar the 90 % interval."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from equivalence import MARGIN, Comparison

LEFT, RIGHT, TOP, PITCH, WIDTH = 190, 24, 30, 26, 860
BOTTOM = 54
TICKS = (-10, -1, -0.1, 0, 0.1, 1, 10, 100)
COLOURS = {"inside": "#1a7f4b", "outside": "#c0392b"}
OTHER_COLOUR = "#6b6b6b"

Scale = Callable[[float], float]
"""Where a value in per cent is drawn."""


@dataclass(frozen=True)
class Row:
    """One arm of the plot.

    Attributes
    ----------
    name
        What stands to the left of it.
    changes
        Each seed's change in per cent.
    comparison
        Their summary.
    """

    name: str
    changes: Sequence[float]
    comparison: Comparison


def draw(rows: Sequence[Row]) -> str:
    """Return the plot; its axis is linear within the margin and logarithmic outside."""
    values = [change for row in rows for change in row.changes] + [-2 * MARGIN, 2 * MARGIN]
    low, high = _squeezed(min(values)) - 0.15, _squeezed(max(values)) + 0.15

    def across(value: float) -> float:
        part = (min(max(_squeezed(value), low), high) - low) / (high - low)
        return LEFT + (WIDTH - LEFT - RIGHT) * part

    bottom = TOP + PITCH * len(rows)
    parts = [
        f'<rect x="{across(-MARGIN):.1f}" y="{TOP}" height="{bottom - TOP}"'
        f' width="{across(MARGIN) - across(-MARGIN):.1f}" fill="#e3f1e8"/>'
    ]
    for tick in TICKS:
        if low <= _squeezed(tick) <= high:
            at = f"{across(tick):.1f}"
            parts.append(f'<path d="M{at} {TOP}V{bottom}" stroke="#d5d5d5"/>')
            parts.append(_text(across(tick), bottom + 18, f"{tick:g}", "middle"))
    for index, row in enumerate(rows):
        parts += _row(row, TOP + PITCH * (index + 0.5), across)
    title = "Change of the final held-out loss against fp32 of the same seed, per cent"
    parts.append(_text(WIDTH / 2, bottom + 42, title, "middle"))
    height = bottom + BOTTOM
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}"'
        f' font-family="sans-serif" font-size="13" role="img"><title>{title}</title>'
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>{"".join(parts)}</svg>\n'
    )


def _row(row: Row, middle: float, across: Scale) -> list[str]:
    colour = COLOURS.get(row.comparison.verdict(), OTHER_COLOUR)
    drawn = [_text(LEFT - 12, middle + 4.5, row.name, "end")]
    drawn += [
        f'<circle cx="{across(change):.1f}" cy="{middle:.1f}" r="3" fill="{colour}"'
        ' fill-opacity="0.35"/>'
        for change in row.changes
    ]
    begin, end = across(row.comparison.low), across(row.comparison.high)
    if row.comparison.pairs > 1:
        drawn.append(
            f'<path d="M{begin:.1f} {middle:.1f}H{end:.1f}" stroke="{colour}" stroke-width="3"/>'
        )
    at = across(row.comparison.mean)
    drawn.append(f'<path d="M{at:.1f} {middle - 7:.1f}v14" stroke="{colour}" stroke-width="3"/>')
    return drawn


def _squeezed(value: float) -> float:
    """Return a value's place: linear within the margin, logarithmic outside."""
    if not math.isfinite(value):
        return math.copysign(math.inf, value)
    if abs(value) <= MARGIN:
        return value / MARGIN
    return math.copysign(1 + math.log10(abs(value) / MARGIN), value)


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="#222">{escape(text)}</text>'
