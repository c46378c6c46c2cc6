"""Data, pipeline and tensor parallel in one job: 8 hosts behind shaped links."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GRADWIRE = ROOT / "target/release/gradwire"
RANK = Path(__file__).with_name("hybrid_rank.py")


def lab_works() -> bool:
    check = subprocess.run([str(GRADWIRE), "lab", "check"], capture_output=True, check=False)
    return check.returncode == 0


def test_all_ways_learn_what_one_process_learns() -> None:
    if not lab_works():
        pytest.skip("no network namespaces on this machine")
    lab = [str(GRADWIRE), "lab", "run", "--hosts", "8", "--rate", "1gbit", "--no-prefix"]
    command = [*lab, "--timeout", "150s", "--", sys.executable, str(RANK)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    assert len(result["runs"]) == 4
    for way, run in result["runs"].items():
        print(f"{way}: {1e3 * run['step_s']:.0f} ms a step")
        assert run["losses"] == pytest.approx(result["reference"], rel=1e-4), way
