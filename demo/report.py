"""Shows a demo's result: a table for the terminal, and an HTML page that needs nothing else.

Run by itself (``python demo/report.py demo/result.json``) it writes the page anew beside the
result.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from html import escape
from pathlib import Path

from plots import Bar, Line, line_chart, stacked_bars, timelines
from result import Curve, Result, Run, from_json, write_whole

PAGE = "report.html"
COLOURS = ("var(--run-0)", "var(--run-1)", "var(--run-2)", "var(--run-3)")
PARTS = ("var(--compute)", "var(--exposed)")
HEADINGS = (
    "run",
    "step",
    "without communication",
    "exposed share",
    "tokens/s",
    "sent/step and host",
    "final loss",
)
METHOD = """
<p>Every host runs one rank with one thread. All runs start from the same seed, see the same text in
the same order and take the same number of steps, with PyTorch's stock DistributedDataParallel, or
with <code>gradwire.parallelize</code> where a run's name says so. Only that and the backend given
to <code>init_process_group</code> differ.</p>
<p><b>Step</b> is the median time of a training step (forward, backward, gradients averaged,
optimizer) over all ranks, the first three left out. <b>Without communication</b> is the median of
the same step under <code>no_sync</code>: training pauses at regular points, all ranks take a few
such steps together, so that they share the processors as in training, and the model and the
optimizer are put back bit for bit. <b>Exposed share</b> is (step &minus; step without
communication) / step, both from the same run: the part of a step that computation does not hide.
What communication costs in processor time counts as exposed too.</p>
<p><b>Loss</b> is cross-entropy in nats per byte; the final one is on held-out files, the same
windows for every run. <b>Sent</b> is what a host's network interfaces counted, framing
included.</p>
"""


def table(result: Result) -> str:
    """Return the runs as a plain text table, one line each below the headings."""
    rows = [HEADINGS, *(_cells(run) for run in result.runs)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def verdict(result: Result) -> str:
    """Compare the last run with the first in one sentence; empty where there is only one."""
    if len(result.runs) < 2:
        return ""
    first, last = result.runs[0], result.runs[-1]
    factor = last.tokens_per_s / first.tokens_per_s
    if abs(factor - 1) < 0.02:
        return f"{last.name} trains as fast as {first.name}, within 2 %"
    relation = f"{factor:.2f}x" if factor > 1 else f"only {factor:.2f}x"
    return f"{last.name} trains at {relation} the speed of {first.name}"


def render(result: Result) -> str:
    """Return the report as one HTML page: style and plots inside, nothing fetched."""
    style = Path(__file__).with_name("report.css").read_text(encoding="utf-8")
    network = _network(result)
    title = verdict(result) or f"Training over {result.runs[0].name}"
    body = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="lead">A GPT of {result.runs[0].parameters / 1e6:.1f} million parameters,'
        f" trained data parallel on {escape(network)}.</p>",
        _note(result),
        _cards(result),
        "<h2>Measured</h2>",
        _table(result),
        "<h2>Where a step's time goes</h2>",
        _step_figure(result),
        *_timeline_figure(result),
        "<h2>Loss</h2>",
        _loss_figures(result),
        "<h2>What was measured, and how</h2>",
        METHOD,
        _facts(result.settings),
        "<h2>Machine</h2>",
        _facts(result.machine),
        "<h2>Commands</h2>",
        f"<pre>{escape(chr(10).join(result.commands))}</pre>",
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>\n{style}</style></head>\n"
        f"<body><main>\n{chr(10).join(body)}\n</main></body></html>\n"
    )


def _network(result: Result) -> str:
    if result.network == "lab":
        return f"{result.hosts} hosts, each behind a {_rate(result.link_rate)} link"
    return f"{result.hosts} ranks over plain loopback"


def _rate(rate: str) -> str:
    for unit, name in (("gbit", "Gbit/s"), ("mbit", "Mbit/s"), ("kbit", "kbit/s")):
        if rate.endswith(unit):
            return f"{rate.removesuffix(unit)} {name}"
    return rate


def _cells(run: Run) -> tuple[str, ...]:
    sent = "-" if run.sent_mb_per_step is None else f"{run.sent_mb_per_step:.1f} MB"
    return (
        run.name,
        f"{run.step_ms:.0f} ms",
        f"{run.no_communication_step_ms:.0f} ms",
        f"{run.exposed_share:.1%}",
        f"{run.tokens_per_s:,.0f}",
        sent,
        f"{run.final_loss:.4f}",
    )


def _note(result: Result) -> str:
    if not result.network_note:
        return ""
    return f'<div class="note"><p>{escape(result.network_note)}</p></div>'


def _cards(result: Result) -> str:
    if len(result.runs) < 2:
        return ""
    first, last = result.runs[0], result.runs[-1]
    difference = (last.final_loss - first.final_loss) / first.final_loss
    cards = (
        (f"{first.step_ms:.0f} → {last.step_ms:.0f} ms", "step time"),
        (f"{first.exposed_share:.0%} → {last.exposed_share:.0%}", "exposed communication share"),
        (f"{first.tokens_per_s:,.0f} → {last.tokens_per_s:,.0f}", "tokens per second"),
        (f"{difference:+.2%}", "difference in final loss"),
    )
    return (
        '<div class="cards">'
        + "".join(
            f'<div class="card"><b>{value}</b><span>{name}</span></div>' for value, name in cards
        )
        + f'</div><p class="soft" style="margin-top:10px">From {escape(first.name)} to'
        f" {escape(last.name)}.</p>"
    )


def _table(result: Result) -> str:
    head = "".join(f"<th>{heading}</th>" for heading in HEADINGS)
    rows = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in _cells(run)) + "</tr>"
        for run in result.runs
    )
    return f'<div class="scroll"><table><tr>{head}</tr>{rows}</table></div>'


def _step_figure(result: Result) -> str:
    bars = [
        Bar(
            run.name,
            (
                min(run.no_communication_step_ms, run.step_ms),
                max(0.0, run.step_ms - run.no_communication_step_ms),
            ),
            f"{run.exposed_share:.0%} exposed",
        )
        for run in result.runs
    ]
    legend = _legend(zip(("compute", "exposed communication"), PARTS, strict=True))
    return f"<figure>{legend}{stacked_bars(bars, PARTS, 'ms per step')}</figure>"


def _timeline_figure(result: Result) -> list[str]:
    steps = [(run.name, run.timeline) for run in result.runs if run.timeline is not None]
    if not steps:
        return []
    kinds = ("forward", "backward", "optimizer", "wait", "operation")
    names = ("forward", "backward", "optimizer", "waiting", "operations under way")
    legend = _legend(zip(names, (f"var(--{kind})" for kind in kinds), strict=True))
    return [
        "<h2>One step, traced</h2>",
        f"<figure>{legend}{timelines(steps)}<figcaption>Rank 0, after the measured steps. The whole"
        " trace of all ranks is in <code>runs/NAME/trace</code>: <code>gradwire trace"
        " summary</code> explains it, and Perfetto opens it.</figcaption></figure>",
    ]


def _loss_figures(result: Result) -> str:
    names = [(run.name, _colour(index)) for index, run in enumerate(result.runs)]
    by_time = line_chart(
        _lines(result.runs, lambda curve: curve.seconds), "seconds of training", "nats per byte"
    )
    by_step = line_chart(_lines(result.runs, lambda curve: curve.step), "step", "nats per byte")
    return (
        f'{_legend(names)}<div class="pair"><figure>{by_time}<figcaption>Over time: how soon each'
        " run gets there. The pauses for measuring are left out.</figcaption></figure>"
        f"<figure>{by_step}<figcaption>Over steps: whether the runs learn the same."
        "</figcaption></figure></div>"
        '<p class="soft" style="margin-top:12px">Dots: held-out text. Thin lines: the batches'
        " trained on.</p>"
    )


def _lines(runs: Sequence[Run], horizontal: Callable[[Curve], Sequence[float]]) -> list[Line]:
    lines = []
    for index, run in enumerate(runs):
        # The first run's line is solid, so that a later one on top of it leaves both visible.
        kind = "dashed" if index else "strong"
        lines.append(Line(horizontal(run.training), run.training.loss, _colour(index), "faint"))
        lines.append(Line(horizontal(run.held_out), run.held_out.loss, _colour(index), kind))
    return lines


def _colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]


def _legend(entries: Iterable[tuple[str, str]]) -> str:
    items = "".join(
        f'<span><i style="background:{colour}"></i>{escape(name)}</span>'
        for name, colour in entries
    )
    return f'<div class="legend">{items}</div>'


def _facts(facts: dict[str, str]) -> str:
    rows = "".join(
        f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in facts.items()
    )
    return f'<table class="facts">{rows}</table>'


def main() -> None:
    """Write the page for a result that is on disk."""
    parser = argparse.ArgumentParser(description="Writes report.html beside a result.json.")
    parser.add_argument("result", type=Path)
    path: Path = parser.parse_args().result
    write_whole(path.with_name(PAGE), render(from_json(path.read_text(encoding="utf-8"))))


if __name__ == "__main__":
    main()
