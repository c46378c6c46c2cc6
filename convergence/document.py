"""docs/convergence.md, laid out from the stored results."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arms import BY_NAME, REFERENCE, SETS, SLOW_LINK, TUNED_RATES
from equivalence import (
    MARGIN,
    SMALLEST_PAIRS,
    Comparison,
    compare,
    pairs_needed,
    relative_changes,
)
from interval_plot import Row, draw
from protocol import Protocol
from stored import load, load_protocol

Result = dict[str, Any]
NOT_COMPRESSED = "NOT COMPRESSED"

INTRODUCTION = f"""\
# Does compressed training end at the same loss?

Written by `make convergence` from the results in `convergence/results/`, which hold every run of
the protocols shown. Each call does runs that are missing, for 30 minutes (`--minutes`), and writes
this page.

A byte-level GPT is trained on the Python standard library's source by real processes on the hosts
of `gradwire lab` (network namespaces, TCP over virtual Ethernet), once for each arm (way in which
gradients travel) and seed. Runs of the same seed start from the same parameters and see the same
data in the same order; only the arm differs. The figure is the loss after the last step over the
whole held-out text (every 16th file), fixed beforehand. Optimizer: AdamW, linear warm-up over a
tenth of the steps, cosine to 0, gradients clipped to norm 1 (not for OneBitAdam, which averages
in its step); the learning rate was chosen with fp32 alone and is the same for all arms. 1-D
parameters and those with fewer than 2048 elements travel uncompressed.

**Verdicts.** The change of an arm is its loss over fp32's of the same seed, minus 1. "inside":
the 90 % interval of the mean change (Student's t) lies inside ±{MARGIN:g} %, from at least
{SMALLEST_PAIRS} pairs: two one-sided tests at 5 % (TOST) show equivalence. "outside": the
interval lies outside. "not shown": neither, so nothing is claimed. "pairs needed" is what the
observed spread asks for to show equivalence with 90 % power if there is no true change. Intervals
are not corrected for the number of arms.
"""

LIMITS = """\
## What this does not establish

- Nothing about large models: a model of 0.12 million parameters that sees a few hundred steps is
  far from 1 billion parameters and 100,000 steps, where gradients are noisier, heavier-tailed and
  errors of a different kind may add up.
- Nothing about other optimizers, learning rates, or mixed precision; hyper-parameters are fp32's.
- An interval says how well the mean change is known over seeds of this one job, not over jobs.
- Bytes are of these small tensors, message headers and acknowledgements included; large models
  come nearer to a codec's own bits per element.
- Seconds are not compared: the ranks share a few cores. `make bench` and the demo are for that.
"""

PILOTS = """\
## Learning rate

fp32 alone, beside a twin whose order of summation is permuted (a ring), which changes nothing but
the last bits: paired seeds tell something only where training does not amplify that beyond the
margin.

Two pilots were abandoned for that reason, not for their outcome. At 4e-3 without clipping (400
steps, the rate with the least fp32 loss: 2.160; 1e-3 2.372, 2e-3 2.256, 8e-3 2.233) seed 1
changed by +1.1 % with int8, +0.7 % with int6 and int4 and -0.2 % with adaptive: no order that
errors could explain. The second, at 2e-3 with clipping, is among the results; its first seed had
+0.30 % with int8 and +0.05 % with int6. So the protocol has 1e-3, at the price of a model that is
further from done.

int6 did not smooth at first. Four seeds of it had +0.084 % (now int6+no-hadamard), one with
smoothing +0.043 %; that made smoothing int6's default, and adaptive, which chooses among the
codecs, was run anew. Seed 1 is therefore not blind for int6.

adaptive held its errors against the gradients' noise alone at first: ten pairs had +0.022 %
(+0.010 to +0.034 %) at 6.20 bits. That compressed too little where gradients agree, as early in
training and with large batches; it holds them against the whole squared gradient now, and all
seeds were run anew.
"""

TUNING = """\
| learning rate | seed | held-out loss | change when summed in another order |
|---|---|---|---|"""

SIXTEEN = """\
What is emulated: 16 real processes, 4 on each of 4 hosts, every one with its own gradient, over
shared memory inside a host and TCP between hosts; the machine's cores are shared by all of them,
and the batch over all ranks is that of the 4 ranks, so each rank's gradient is noisier. Nothing
is accumulated in place of a rank. Ranks of a host reduce plain among themselves; what hosts send
to each other is encoded.
"""


@dataclass(frozen=True)
class Line:
    """What the table says of an arm.

    Attributes
    ----------
    name
        The arm's.
    changes
        Per cent, by seed.
    comparison
        Their summary; `None` for the reference.
    megabytes
        Sent by all hosts in a run, on average.
    bits
        Of the wire for each 32 that the reference sends: bits per element, headers included.
    codec_bits
        Per element that a codec was given; NaN if none was.
    verdict
        In words.
    """

    name: str
    changes: Mapping[int, float]
    comparison: Comparison | None
    megabytes: float
    bits: float
    codec_bits: float
    verdict: str


def write(results: Path, page: Path) -> None:
    """Write the page, and its plots beside it."""
    page.parent.mkdir(parents=True, exist_ok=True)
    parts = [INTRODUCTION]
    tuning: list[Result] = []
    for path in sorted(results.glob("*.jsonl"), key=_order):
        protocol, runs = load_protocol(path), load(path)
        if protocol.name == "tuning":
            tuning += runs
        elif lines := summarise(runs):
            plot = page.with_name(f"{page.stem}-{path.stem}.svg")
            plot.write_text(draw(_rows(lines)), encoding="utf-8")
            parts.append(_section(protocol, runs, lines, plot.name))
    parts += [PILOTS, _tuning(tuning), LIMITS]
    page.write_text("\n\n".join(part.strip() for part in parts if part) + "\n", encoding="utf-8")


def summarise(runs: Sequence[Result]) -> list[Line]:
    """Compare every arm with the reference; seeds without a reference are left out."""
    by_arm: dict[str, dict[int, Result]] = {}
    for run in runs:
        by_arm.setdefault(run["arm"], {})[run["seed"]] = run
    reference = by_arm.get(REFERENCE, {})
    lines = []
    for name in [name for name in BY_NAME if name in by_arm]:
        shared = sorted(set(by_arm[name]) & set(reference))
        if shared:
            pairs = [(by_arm[name][seed], reference[seed]) for seed in shared]
            lines.append(_line(name, shared, pairs))
    return lines


def _line(name: str, seeds: Sequence[int], pairs: Sequence[tuple[Result, Result]]) -> Line:
    losses = [(own["held_out_loss"], reference["held_out_loss"]) for own, reference in pairs]
    changes = relative_changes(*zip(*losses, strict=True))
    comparison = None if name == REFERENCE else compare(changes)
    verdict = "reference" if comparison is None else comparison.verdict()
    if BY_NAME[name].compresses and not all(_is_compressed(*pair) for pair in pairs):
        verdict = NOT_COMPRESSED
    sent = statistics.fmean(own["interface_bytes"] for own, _ in pairs)
    raw = statistics.fmean(reference["interface_bytes"] for _, reference in pairs)
    before = sum(own.get("bytes_before_codec", 0) for own, _ in pairs)
    after = sum(own.get("bytes_after_codec", 0) for own, _ in pairs)
    return Line(
        name,
        dict(zip(seeds, changes, strict=True)),
        comparison,
        sent / 1e6,
        32 * sent / raw,
        32 * after / before if before else math.nan,
        verdict,
    )


def _is_compressed(own: Result, reference: Result) -> bool:
    return bool(own["interface_bytes"] < 0.95 * reference["interface_bytes"])


def _order(path: Path) -> tuple[int, int]:
    """Sort by protocol, those with more results first."""
    names = list(SETS)
    return names.index(load_protocol(path).name), -len(load(path))


def _rows(lines: Sequence[Line]) -> list[Row]:
    return [
        Row(line.name, list(line.changes.values()), line.comparison)
        for line in lines
        if line.comparison is not None
    ]


def _section(protocol: Protocol, runs: Sequence[Result], lines: Sequence[Line], plot: str) -> str:
    references = [run["held_out_loss"] for run in runs if run["arm"] == REFERENCE]
    seconds = statistics.median(run["seconds"] for run in runs)
    spread = ""
    if len(references) > 1:
        part = 100 * statistics.stdev(references) / statistics.fmean(references)
        spread = f" Across seeds fp32's loss has a standard deviation of {part:.2f} %."
    facts = (
        f"{protocol.hosts} hosts, {protocol.ranks} ranks of one thread;"
        f" {runs[0]['parameters']:,} parameters ({protocol.layers} layers of width"
        f" {protocol.width}), context {protocol.context}, batch {protocol.batch} per rank,"
        f" {protocol.steps} steps, learning rate {protocol.learning_rate:g}, AdamW betas"
        f" {protocol.first_moment:g} and {protocol.second_moment:g}, weight decay"
        f" {protocol.weight_decay:g}; gradwire {runs[0]['gradwire']}, torch {runs[0]['torch']}."
        f" {len(runs)} runs of {seconds:.0f} s (median, on cores that were shared with other"
        f" work).{spread}"
    )
    heading = f"{protocol.ranks} ranks, {protocol.steps} steps at {protocol.learning_rate:g}"
    parts = [f"## {heading}", facts]
    if protocol.ranks_per_host > 1:
        parts.append(SIXTEEN.strip())
    parts += [_table(lines), f"![Intervals of all arms]({plot})", _power(lines)]
    parts += [_adaptive(runs), _every_seed(lines, runs)]
    return "\n\n".join(part for part in parts if part)


def _table(lines: Sequence[Line]) -> str:
    rows = [
        "| arm | what it is | bits per element on the wire | codec's bits | MB sent"
        " | pairs | mean change | sd | 90 % interval | verdict |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for line in lines:
        codec = "" if math.isnan(line.codec_bits) else f"{line.codec_bits:.2f}"
        start = (
            f"| {line.name} | {BY_NAME[line.name].purpose} | {line.bits:.1f} | {codec}"
            f" | {line.megabytes:.0f} | {len(line.changes)} |"
        )
        rows.append(f"{start} {_figures(line.comparison)} | {line.verdict} |")
    return "\n".join(rows)


def _figures(comparison: Comparison | None) -> str:
    if comparison is None:
        return "0 | |"
    if comparison.pairs < 2:
        return f"{_percent(comparison.mean)} | |"
    interval = f"{_percent(comparison.low)} to {_percent(comparison.high)}"
    return f"{_percent(comparison.mean)} | {comparison.deviation:.3f} % | {interval}"


def _percent(value: float) -> str:
    return f"{value:+.3f} %" if abs(value) < 1 else f"{value:+.1f} %"


def _power(lines: Sequence[Line]) -> str:
    parts = []
    for line in lines:
        if line.comparison is None or line.comparison.pairs < 2:
            continue
        needed = pairs_needed(line.comparison.deviation)
        has = line.comparison.pairs
        parts.append(f"{line.name} {needed or 'over 10,000'} (has {has})")
    if not parts:
        return ""
    return f"Pairs needed to show ±{MARGIN:g} %, from each arm's own spread: {'; '.join(parts)}."


def _adaptive(runs: Sequence[Result]) -> str:
    """Say what the controller chose; it plans again and again, so each plan counts alike."""
    plans = [plan for run in runs if run["arm"] == "adaptive" for plan in run["plans"]]
    chosen: dict[str, float] = {}
    counted = [plan["elements"] for plan in plans if plan["elements"]]
    for elements in counted:
        for codec, count in elements.items():
            share = count / sum(elements.values()) / len(counted)
            chosen[codec] = chosen.get(codec, 0.0) + share
    if not chosen:
        return ""
    ordered = sorted(chosen.items(), key=lambda item: -item[1])
    shares = ", ".join(f"{codec} {100 * share:.0f} %" for codec, share in ordered)
    return (
        f"**What adaptive chose** on links of {SLOW_LINK}, where it pays to compress (on shared"
        f" memory it chooses none): of the elements that may be compressed, over {len(counted)}"
        f" plans: {shares}. The last plan: {plans[-1]['reason']}."
    )


def _every_seed(lines: Sequence[Line], runs: Sequence[Result]) -> str:
    seeds = sorted({seed for line in lines for seed in line.changes})
    losses = {run["seed"]: run["held_out_loss"] for run in runs if run["arm"] == REFERENCE}
    rows = [
        "Every seed: fp32's loss in nats per byte, changes in per cent.",
        "",
        "| arm | " + " | ".join(f"seed {seed}" for seed in seeds) + " |",
        "|---|" + "---|" * len(seeds),
        "| fp32 | " + " | ".join(f"{losses[seed]:.4f}" for seed in seeds) + " |",
    ]
    for line in lines:
        if line.comparison is not None:
            cells = [f"{line.changes[s]:+.3f}" if s in line.changes else "" for s in seeds]
            rows.append(f"| {line.name} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def _tuning(runs: Sequence[Result]) -> str:
    """Lay out the runs at several learning rates, each with a permuted twin."""
    losses: dict[tuple[str, int], float] = {
        (run["arm"], run["seed"]): run["held_out_loss"] for run in runs
    }
    rows = []
    for rate in TUNED_RATES:
        for seed in sorted({run["seed"] for run in runs}):
            loss = losses.get((f"fp32 at {rate:g}", seed))
            permuted = losses.get((f"fp32 ring at {rate:g}", seed))
            if loss is not None and permuted is not None:
                rows.append(
                    f"| {rate:g} | {seed} | {loss:.4f} | {100 * (permuted / loss - 1):+.3f} % |"
                )
    return "\n".join([TUNING, *rows]) if rows else ""
