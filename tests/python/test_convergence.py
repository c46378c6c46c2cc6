"""The convergence benchmark's statistics and bookkeeping; no training."""

from __future__ import annotations

import math
import random
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "convergence"))

import document
from arms import ARMS, BY_NAME, REFERENCE, SETS
from equivalence import compare, pairs_needed, relative_changes, t_quantile
from protocol import four_ranks, sixteen_ranks
from stored import append, load, missing, save_protocol


@pytest.mark.parametrize(
    ("freedom", "probability", "expected"),
    # Abramowitz and Stegun, table 26.10.
    [(1, 0.95, 6.314), (2, 0.95, 2.920), (3, 0.975, 3.182), (7, 0.95, 1.895), (30, 0.9, 1.310)],
)
def test_quantiles_of_t(freedom: int, probability: float, expected: float) -> None:
    assert t_quantile(probability, freedom) == pytest.approx(expected, abs=1e-3)
    assert t_quantile(1 - probability, freedom) == pytest.approx(-expected, abs=1e-3)


def test_changes_are_relative_and_in_per_cent() -> None:
    assert relative_changes([2.02, 3.96], [2.0, 4.0]) == pytest.approx([1.0, -1.0])


def test_intervals_are_those_of_the_textbook() -> None:
    comparison = compare([0.1, 0.2, 0.3, 0.4])
    half = 2.3534 * comparison.deviation / 2
    assert comparison.deviation == pytest.approx(0.1291, abs=1e-4)
    assert comparison.low == pytest.approx(0.25 - half, abs=1e-4)
    assert comparison.high == pytest.approx(0.25 + half, abs=1e-4)


def test_verdicts() -> None:
    narrow = [0.01, -0.01, 0.02, -0.02, 0.0, 0.01, 0.0, -0.01]
    assert compare(narrow).verdict() == "inside"
    assert compare(narrow[:7]).verdict() == "not shown", "too few pairs to claim anything"
    assert compare([change + 1 for change in narrow]).verdict() == "outside"
    assert compare([change - 1 for change in narrow]).verdict() == "outside"
    assert compare([20 * change for change in narrow]).verdict() == "not shown"
    assert compare([0.0]).verdict() == "not shown"
    assert compare([5.0]).verdict() == "not shown"


def test_pairs_needed_give_the_power_that_is_promised() -> None:
    assert pairs_needed(0.001) == 8
    assert pairs_needed(100.0) is None
    deviation = 0.12
    pairs = pairs_needed(deviation)
    assert pairs is not None and 12 < pairs < 25
    numbers = random.Random(1)
    verdicts = [
        compare([numbers.gauss(0, deviation) for _ in range(pairs)]).verdict() for _ in range(400)
    ]
    assert verdicts.count("inside") > 0.85 * len(verdicts)
    few = [
        compare([numbers.gauss(0, deviation) for _ in range(pairs // 2)]).verdict()
        for _ in range(400)
    ]
    assert few.count("inside") < 0.8 * len(few)


def test_runs_that_are_missing_come_seed_by_seed(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    append(path, {"arm": "a", "seed": 1, "held_out_loss": 2.0})
    append(path, {"arm": "a", "seed": 1, "held_out_loss": 9.0})
    append(path, {"arm": "b", "seed": 2, "held_out_loss": 3.0})
    results = load(path)
    assert [result["held_out_loss"] for result in results] == [2.0, 3.0], "the first one counts"
    assert missing(results, {"a": 3, "b": 2}) == [("b", 1), ("a", 2), ("a", 3)]
    path.write_text('{"arm": "a", "seed"')
    with pytest.raises(ValueError, match=r"results\.jsonl:1.*delete the line"):
        load(path)


def test_other_settings_have_other_files() -> None:
    assert four_ranks("a").file_name == four_ranks("a").file_name
    names = {four_ranks("a").file_name, four_ranks("b").file_name, sixteen_ranks("a").file_name}
    assert len(names) == 3


def test_the_learning_rate_rises_and_falls_to_zero() -> None:
    protocol = four_ranks("")
    rates = [protocol.rate_at(step, 1.0) for step in range(protocol.steps)]
    top = rates.index(max(rates))
    assert rates[: top + 1] == sorted(rates[: top + 1]) and max(rates) == 1.0
    assert rates[top:] == sorted(rates[top:], reverse=True)
    assert rates[-1] == pytest.approx(0.0, abs=1e-12) and math.isclose(rates[0], 10 / len(rates))


def test_every_set_names_arms_and_has_the_reference() -> None:
    assert len(BY_NAME) >= len(ARMS), "two arms have one name"
    for names in SETS.values():
        assert all(name in BY_NAME for name in names)
    assert SETS["4-ranks"][0] == SETS["16-ranks"][0] == REFERENCE


def result(arm: str, seed: int, loss: float, sent: int) -> dict[str, Any]:
    return {
        "arm": arm,
        "seed": seed,
        "held_out_loss": loss,
        "interface_bytes": sent,
        "parameters": 1000,
        "seconds": 20.0,
        "plans": [],
        "gradwire": "0",
        "torch": "0",
    }


def test_what_did_not_compress_does_not_pass(tmp_path: Path) -> None:
    runs = []
    for seed in range(1, 10):
        runs.append(result(REFERENCE, seed, 2.0 + seed / 100, 1_000_000))
        runs.append(result("int8", seed, 2.0 + seed / 100, 990_000))
        runs.append(result("int6", seed, 2.0 + seed / 100, 200_000))
    verdicts = {line.name: line.verdict for line in document.summarise(runs)}
    assert verdicts[REFERENCE] == "reference"
    assert verdicts["int8"] == document.NOT_COMPRESSED
    assert verdicts["int6"] == "inside"
    protocol = four_ranks("")
    for run in runs:
        append(tmp_path / protocol.file_name, run)
    save_protocol(tmp_path / protocol.file_name, protocol)
    document.write(tmp_path, tmp_path / "page.md")
    page = (tmp_path / "page.md").read_text()
    assert "NOT COMPRESSED" in page and "| inside |" in page
    plot = tmp_path / f"page-{Path(protocol.file_name).stem}.svg"
    assert plot.read_text().startswith("<svg") and f"]({plot.name})" in page
