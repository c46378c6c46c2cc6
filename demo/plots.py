"""Line charts and stacked bars as inline SVG; colours come from the page's CSS variables."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from timeline import OPERATION, WAITING, Span, Timeline, rows

WIDTH, HEIGHT = 560, 330
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 12, 44


@dataclass(frozen=True)
class Line:
    """One line of a chart.

    Attributes
    ----------
    x, y
        Its points.
    colour
        A CSS colour.
    kind
        ``faint`` for a thin pale line, ``strong`` for a thick one with dots, ``dashed`` for
        ``strong`` that lets another line show through.
    """

    x: Sequence[float]
    y: Sequence[float]
    colour: str
    kind: str


@dataclass(frozen=True)
class Bar:
    """One bar of two parts.

    Attributes
    ----------
    label
        What stands to the left of it.
    parts
        Lengths of the parts, first the one at the axis.
    note
        What stands to the right of it.
    """

    label: str
    parts: tuple[float, float]
    note: str


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Choose at most `most` + 1 round numbers (1, 2 or 5 times a power of ten) in a range."""
    span = high - low
    if span <= 0:
        return [low]
    power = 10.0 ** math.floor(math.log10(span / most))
    step = next(power * factor for factor in (1, 2, 5, 10) if span / (power * factor) <= most)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(step * index, 10) for index in range(first, last + 1)]


def line_chart(lines: Sequence[Line], x_label: str, y_label: str) -> str:
    """Draw lines over common axes; the x axis starts at 0, the y axis fits the values."""
    x_high = max(max(line.x) for line in lines)
    y_low, y_high = min(min(line.y) for line in lines), max(max(line.y) for line in lines)
    margin = 0.06 * (y_high - y_low) or 0.5
    y_low, y_high = y_low - margin, y_high + margin

    def across(value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * value / x_high

    def up(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (value - y_low) / (y_high - y_low)

    parts = [_horizontal_grid(ticks(y_low, y_high), up), _x_axis(ticks(0, x_high), across)]
    parts += [_polyline(line, across, up) for line in lines]
    middle_x, middle_y = (LEFT + WIDTH - RIGHT) / 2, (TOP + HEIGHT - BOTTOM) / 2
    parts.append(_text(middle_x, HEIGHT - 6, x_label, "middle"))
    parts.append(
        f'<text x="14" y="{middle_y:.1f}" text-anchor="middle"'
        f' transform="rotate(-90 14 {middle_y:.1f})">{escape(y_label)}</text>'
    )
    return _svg(HEIGHT, parts, f"{y_label} against {x_label}")


def stacked_bars(bars: Sequence[Bar], colours: tuple[str, str], unit: str) -> str:
    """Draw horizontal bars of two parts over an axis from 0, one below the other."""
    thickness, pitch, left, right = 34, 58, 96, 128
    height = TOP + pitch * len(bars) + BOTTOM
    longest = max(sum(bar.parts) for bar in bars)

    def across(value: float) -> float:
        return left + (2 * WIDTH - left - right) * value / longest

    parts = []
    for tick in ticks(0, longest, 8):
        at = f"{across(tick):.1f}"
        bottom = height - BOTTOM
        parts.append(f'<line class="grid" x1="{at}" x2="{at}" y1="{TOP}" y2="{bottom}"/>')
        parts.append(_text(across(tick), bottom + 18, f"{tick:g}", "middle"))
    for index, bar in enumerate(bars):
        top = TOP + pitch * index + (pitch - thickness) / 2
        parts.append(_text(left - 12, top + thickness / 2 + 5, bar.label, "end", "name"))
        parts += _bar(bar, colours, top, thickness, across)
        end = across(sum(bar.parts))
        parts.append(_text(end + 10, top + thickness / 2 + 5, bar.note, "start", "name"))
    parts.append(_text((left + 2 * WIDTH - right) / 2, height - 6, unit, "middle"))
    return _svg(height, parts, f"bars in {unit}", 2 * WIDTH)


def timelines(steps: Sequence[tuple[str, Timeline]]) -> str:
    """Draw steps below each other on one scale: computation, and operations under way.

    Parameters
    ----------
    steps
        Names and steps.
    """
    left, right = 20, 20
    longest = max(step.milliseconds for _, step in steps)
    scale = (2 * WIDTH - left - right) / longest
    parts: list[str] = []
    top = 0.0
    for name, step in steps:
        parts.append(_text(left, top + 18, f"{name}: {step.milliseconds:.0f} ms", "start", "name"))
        top += 26
        for span in step.spans:
            if span.kind != OPERATION:
                # Waits lie on top of the computation that they interrupt.
                height = 26 if span.kind != WAITING else 18
                parts.append(_span(span, left, scale, top + (26 - height), height))
        top += 30
        stacked = rows(span for span in step.spans if span.kind == OPERATION)
        for row in stacked:
            parts += [_span(span, left, scale, top, 5) for span in row]
            top += 6
        top += 18
    return _svg(math.ceil(top), parts, "one step of rank 0 in each run", 2 * WIDTH)


def _span(span: Span, left: float, scale: float, top: float, height: float) -> str:
    x, width = left + span.start_ms * scale, max(0.6, (span.end_ms - span.start_ms) * scale)
    colour = "operation" if span.kind == OPERATION else span.kind.removeprefix("gradwire.")
    hint = f"{span.name}: {span.start_ms:.1f} to {span.end_ms:.1f} ms"
    return (
        f'<rect x="{x:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.0f}"'
        f' style="fill:var(--{colour})"><title>{escape(hint)}</title></rect>'
    )


def _bar(
    bar: Bar,
    colours: tuple[str, str],
    top: float,
    thickness: float,
    across: Callable[[float], float],
) -> list[str]:
    drawn, begin = [], 0.0
    for length, colour in zip(bar.parts, colours, strict=True):
        x, width = across(begin), across(begin + length) - across(begin)
        drawn.append(
            f'<rect x="{x:.1f}" y="{top:.1f}" width="{width:.1f}" height="{thickness}"'
            f' style="fill:{colour}"/>'
        )
        if width > 40:
            drawn.append(
                _text(x + width / 2, top + thickness / 2 + 5, f"{length:.0f}", "middle", "inside")
            )
        begin += length
    return drawn


def _horizontal_grid(values: Sequence[float], up: Callable[[float], float]) -> str:
    return "".join(
        f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{up(value):.1f}"'
        f' y2="{up(value):.1f}"/>' + _text(LEFT - 8, up(value) + 4, f"{value:g}", "end")
        for value in values
    )


def _x_axis(values: Sequence[float], across: Callable[[float], float]) -> str:
    bottom = HEIGHT - BOTTOM
    axis = f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{bottom}" y2="{bottom}"/>'
    return axis + "".join(
        _text(across(value), bottom + 18, f"{value:g}", "middle") for value in values
    )


def _polyline(line: Line, across: Callable[[float], float], up: Callable[[float], float]) -> str:
    points = [(across(x), up(y)) for x, y in zip(line.x, line.y, strict=True)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    drawn = f'<polyline class="line {line.kind}" points="{path}" style="stroke:{line.colour}"/>'
    if line.kind == "faint":
        return drawn
    return drawn + "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" style="fill:{line.colour}"/>' for x, y in points
    )


def _text(x: float, y: float, text: str, anchor: str, kind: str = "label") -> str:
    return (
        f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
    )


def _svg(height: int, parts: Sequence[str], title: str, width: int = WIDTH) -> str:
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}">'
        f"{''.join(parts)}</svg>"
    )
