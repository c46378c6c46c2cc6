"""What compression says of itself: in the log, in the trace, and in the engine's counters."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.compression.controller import FIRST_PLAN
from gradwire.logs import level_of
from job import run
from test_controller import Job, a_slow_link
from test_tracing import events

TRAINING = f"""
import logging, sys
{{before}}
import gradwire
{{after}}
import torch, torch.distributed as dist
dist.init_process_group("gradwire", init_method="file://" + sys.argv[1], rank=0, world_size=1)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
model.register_comm_hook(*gradwire.ddp_hook(module=model.module))
for step in range({FIRST_PLAN + 1}):
    model(torch.ones(4, 64)).sum().backward()
logging.getLogger("gradwire.compression").warning("a warning")
dist.destroy_process_group()
"""

CONFIGURED = "logging.basicConfig(format='mine %(message)s')"


def said(
    folder: Path, setting: str | None, before: str = "", after: str = ""
) -> tuple[list[str], list[str]]:
    """Return the lines that tell of a plan, and those of the warning, in a small training."""
    environment = {key: value for key, value in os.environ.items() if key != "GRADWIRE_LOG"}
    if setting is not None:
        environment["GRADWIRE_LOG"] = setting
    done = subprocess.run(
        [sys.executable, "-c", TRAINING.format(before=before, after=after), str(folder / "store")],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    lines = done.stderr.splitlines()
    plans = [line for line in lines if f"step {FIRST_PLAN}: compression would save" in line]
    return plans, [line for line in lines if line.endswith("a warning")]


def test_the_setting_governs_the_log(tmp_path: Path) -> None:
    plans, warnings = said(tmp_path, "info")
    assert len(plans) == 1 and "INFO gradwire.compression" in plans[0]
    assert len(warnings) == 1
    assert said(tmp_path, None) == ([], ["a warning"]), "as Python's logging has it"
    assert said(tmp_path, "error") == ([], [])


@pytest.mark.parametrize("place", ["before", "after"])
def test_a_log_that_is_set_up_already_is_the_programs(tmp_path: Path, place: str) -> None:
    plans, warnings = said(tmp_path, "info", **{place: CONFIGURED})
    assert [line.split()[0] for line in plans + warnings] == ["mine", "mine"]
    quiet = f"{CONFIGURED}; logging.getLogger('gradwire').setLevel(logging.WARNING)"
    assert said(tmp_path, "info", **{place: quiet}) == ([], ["mine a warning"])


@pytest.mark.parametrize(
    ("filter", "level"),
    [
        ("info", 20),
        ("TRACE", 10),
        ("off", 51),
        ("warn,gradwire=debug", 10),
        ("gradwire=error,debug", 40),
        ("gradwire_transport=debug", None),
        ("", None),
        ("loud", None),
    ],
)
def test_filters(filter: str, level: int | None) -> None:
    assert level_of(filter) == level


def decide(directory: str) -> None:
    with a_slow_link(), gradwire.profile(directory):
        job = Job()
        job.train(FIRST_PLAN + 1)
        job.train(1, scale=1e4)
        job.codecs()


def test_decisions_are_in_the_trace(tmp_path: Path) -> None:
    run(decide, 2, str(tmp_path))
    for rank in range(2):
        decisions = [one for one in events(tmp_path, rank) if one["cat"] == "compression"]
        assert [one["name"] for one in decisions] == ["plan 1", "alarm"]
        plan, alarm = (one["args"] for one in decisions)
        assert plan["step"] == FIRST_PLAN and "relative error" in plan["why"]
        assert plan["codecs"].keys() == {"tokens.weight", "square.weight", "tall.weight"}
        assert plan["codecs"]["tokens.weight"] == "int8"
        assert "gradient norm" in alarm["why"] and "no compression" in alarm["why"]


def counted() -> None:
    """Between two ranks what is counted is what the engine sends."""
    for name in ("int8", "top_k", "random_k", "power_sgd", "block_sparse"):
        model = DistributedDataParallel(nn.Linear(64, 64, bias=False))
        model.register_comm_hook(*gradwire.ddp_hook(name, smallest=512))
        group: Any = dist.group.WORLD
        dist.barrier()
        before = group.counters()
        model(torch.ones(4, 64))[:, :8].square().sum().backward()  # Other rows' gradients are 0.
        dist.barrier()
        names = ("bytes_before_codec", "bytes_after_codec", "bytes_sent")
        plain, encoded, sent = (group.counters()[one] - before[one] for one in names)
        assert plain == 4 * 64 * 64, name
        assert encoded == sent, name
        assert 0 < encoded < plain / 3, (name, encoded)


def test_what_is_saved_is_counted() -> None:
    run(counted, 2)
