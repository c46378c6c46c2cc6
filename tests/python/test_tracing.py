"""Timelines of training, by setting and by `profile`, and what the command makes of them."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire import tracing
from job import join, run

STEPS = 3


def command() -> str:
    """Return the `gradwire` command that `make setup` builds."""
    built = Path(__file__).resolve().parents[2] / "target" / "release" / "gradwire"
    return os.environ.get("GRADWIRE_COMMAND", str(built))


def summary(directory: Path) -> Any:
    arguments = [command(), "trace", "summary", "--json", str(directory)]
    return json.loads(subprocess.run(arguments, check=True, capture_output=True).stdout)


def events(directory: Path, rank: int) -> list[dict[str, Any]]:
    document = json.loads((directory / f"rank{rank}.json").read_text())
    return [event for event in document["traceEvents"] if event["ph"] == "X"]


def train() -> None:
    torch.manual_seed(0)
    model = DistributedDataParallel(
        nn.Sequential(*(nn.Linear(256, 256) for _ in range(4))), bucket_cap_mb=1
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(STEPS):
        with tracing.span(f"step {step}", "step", number=step):
            optimizer.zero_grad()
            with tracing.span("forward", "forward"):
                loss = model(torch.ones(8, 256)).square().mean()
            with tracing.span("backward", "backward"):
                loss.backward()
            with tracing.span("optimizer", "optimizer"):
                optimizer.step()


def train_all_traced(store: str, rank: int, size: int, directory: str) -> None:
    join(store, rank, size, trace=directory)
    assert tracing.active()
    train()
    dist.destroy_process_group()
    assert not tracing.active()


def test_training_under_the_setting(tmp_path: Path) -> None:
    """Communication is found, and divided into what is hidden and what is exposed."""
    run(train_all_traced, 2, str(tmp_path), joins=False)
    found = summary(tmp_path)
    assert [rank["steps"] for rank in found["ranks"]] == [STEPS, STEPS]
    for rank in found["ranks"]:
        assert rank["communication_s"] > 0
        assert rank["hidden_s"] + rank["exposed_s"] == pytest.approx(rank["communication_s"])
        # DDP waits for futures; those that are over before it asks for them leave only waits.
        assert rank["method"] in ("waits", "bursts", "waits_and_bursts")
        assert rank["communication_s"] <= rank["window_s"] <= rank["trace_s"]
    for part in ("hidden_s", "exposed_s"):
        total = sum(rank[part] for rank in found["ranks"])
        assert sum(row[part] for row in found["operations"]) == pytest.approx(total)
    assert found["critical_path"]["steps"] == STEPS
    pieces = {(it["kind"], it.get("phase")) for it in found["critical_path"]["contributions"]}
    assert ("compute", "backward") in pieces
    spans = [event for event in events(tmp_path, 1) if event["cat"] == "step"]
    assert [span["args"] for span in spans] == [{"number": step} for step in range(STEPS)]


def profile_parts(directory: str) -> None:
    tensor = torch.ones(1000)
    dist.all_reduce(tensor)
    with tracing.span("unseen", "forward"), tracing.label("unseen"):
        assert not tracing.active()
    with gradwire.profile(Path(directory)):
        with tracing.label("bucket 7"):
            dist.all_reduce(tensor)
        tracing.instant("checkpoint", "mark", step=3)
        start = tracing.now()
        tracing.record("odd", "forward", start, tracing.now(), {"shape": torch.Size([2, 3])})
        with pytest.raises(ValueError, match="already"), gradwire.profile(directory):
            pass
        dist.all_reduce(tensor)
    dist.all_reduce(tensor)


def test_profile_of_a_part(tmp_path: Path) -> None:
    """A profile holds what happened inside, with the labels and arguments that it was given."""
    run(profile_parts, 2, str(tmp_path))
    for rank in range(2):
        seen = events(tmp_path, rank)
        operations = [event["name"] for event in seen if event["cat"] == "gradwire.operation"]
        assert operations[0] == "bucket 7"
        assert len(operations) == 2
        assert operations[1].startswith("all_reduce(float32")
        own = {event["name"]: event for event in seen if not event["cat"].startswith("gradwire.")}
        assert set(own) == {"checkpoint", "odd"}
        assert own["checkpoint"]["args"] == {"step": 3}
        assert own["checkpoint"]["dur"] == 0
        assert own["odd"]["args"] == {"shape": [2, 3]}


def profile_beside_torch(directory: str) -> tuple[float, float, float, float]:
    exported = Path(directory, f"torch{dist.get_rank()}.json")
    activities = [torch.profiler.ProfilerActivity.CPU]
    with (
        gradwire.profile(directory),
        torch.profiler.profile(activities=activities) as profiler,
        torch.profiler.record_function("mark"),
        tracing.span("mark", "forward"),
    ):
        torch.ones(10).sum()
    profiler.export_chrome_trace(str(exported))
    theirs = json.loads(exported.read_text())
    ours = json.loads(Path(directory, f"rank{dist.get_rank()}.json").read_text())
    mark_of = [
        next(it for it in document["traceEvents"] if it["name"] == "mark")["ts"]
        for document in (theirs, ours)
    ]
    bases = [document["baseTimeNanoseconds"] for document in (theirs, ours)]
    return mark_of[0], mark_of[1], bases[0], bases[1]


def test_lines_up_with_torch_profiler(tmp_path: Path) -> None:
    """Both files count from the same time, and agree on when something was."""
    [(theirs, ours, their_base, our_base)] = run(profile_beside_torch, 1, str(tmp_path))
    assert their_base == our_base
    assert ours == pytest.approx(theirs, abs=20_000)


def test_profile_needs_a_group_of_gradwire() -> None:
    """Without a process group the error says what to do."""
    with pytest.raises(ValueError, match="init_process_group"), gradwire.profile("nowhere"):
        pass


def test_spans_cost_next_to_nothing_without_a_trace() -> None:
    """A span that nobody records does not even look at the clock."""
    assert tracing.span("a", "forward") is tracing.span("b", "backward", size=1)
