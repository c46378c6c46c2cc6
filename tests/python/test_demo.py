"""The demo: its parts by themselves, and the whole over loopback with Gloo."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

DEMO = Path(__file__).resolve().parents[2] / "demo"
sys.path.append(str(DEMO))

import interface  # noqa: E402
import report  # noqa: E402
import result  # noqa: E402
import text  # noqa: E402
import torch  # noqa: E402
import train  # noqa: E402
from events import EventFollower, diagnose  # noqa: E402
from launch import Job, over_loopback  # noqa: E402
from model import GPT, Shape, parameter_count  # noqa: E402
from plots import Bar, Line, line_chart, stacked_bars, ticks  # noqa: E402

TINY = Shape(layers=1, width=16, heads=2, context=8)


def rank_events(
    rank: int, steps: int = 6, step: float = 0.5, bare: float = 0.3
) -> list[dict[str, Any]]:
    """One rank's events of a run whose every third step ends a block."""
    events: list[dict[str, Any]] = [
        {"event": "started", "parameters": 1000, "at": 100.0},
        {"event": "held_out", "step": 0, "loss": 5.5, "at": 100.0},
    ]
    for number in range(1, steps + 1):
        timed = number > 3
        seconds = step if timed else 9.0
        loss = 5.0 - 0.1 * number + rank
        events.append({"event": "step", "step": number, "seconds": seconds, "loss": loss})
        events[-1] |= {"timed": timed, "at": 101.0}
        if number % 3 == 0:
            events.append({"event": "block", "steps": 3, "sent_bytes": 6_000_000, "at": 102.0})
            events.append({"event": "step_without_communication", "seconds": bare, "at": 102.0})
            events.append({"event": "held_out", "step": number, "loss": 4.0 + rank, "at": 103.0})
    return [*events, {"event": "finished", "at": 110.0}]


def summary(name: str = "gloo", step: float = 0.5) -> result.Run:
    ranks = [rank_events(rank, step=step) for rank in range(2)]
    return result.summarize(name, ranks, 400, own_interfaces=True)


def whole_result(*runs: result.Run, note: str = "") -> result.Result:
    return result.Result(
        link_rate="1gbit",
        network="lab",
        network_note=note,
        no_communication_step_ms=300.0,
        hosts=2,
        settings={"Model": "tiny <b>"},
        machine={"Processor": "any"},
        commands=["python demo/run.py"],
        runs=list(runs),
    )


class TestText:
    def write_files(self, root: Path) -> None:
        for index in range(32):
            (root / f"part{index:02d}.py").write_bytes(b"%02d\n" % index)
        for skipped in ("test", "site-packages", "encodings"):
            (root / skipped).mkdir()
            (root / skipped / "other.py").write_bytes(b"never\n")

    def test_splits_by_file_and_skips_tests_and_packages(self, tmp_path: Path) -> None:
        self.write_files(tmp_path)
        corpus = text.collect(tmp_path, smallest=1)
        assert corpus.held_out == b"15\n31\n"
        assert corpus.train.split() == [b"%02d" % i for i in range(32) if i not in (15, 31)]
        assert corpus.files == 32

    def test_says_where_text_is_missing(self, tmp_path: Path) -> None:
        with pytest.raises(text.TextError, match=re.escape(str(tmp_path))):
            text.collect(tmp_path)

    def test_the_standard_library_is_enough_and_always_the_same(self) -> None:
        corpus = text.collect(text.standard_library())
        assert len(corpus.train) > 4_000_000
        assert len(corpus.held_out) > 100_000
        assert corpus == text.collect(text.standard_library())


class TestModel:
    def test_has_about_ten_million_parameters_in_the_demo(self) -> None:
        model = GPT(Shape(layers=6, width=384, heads=6, context=64))
        assert 9.5e6 < parameter_count(model) < 11.5e6

    def test_starts_out_knowing_nothing(self) -> None:
        torch.manual_seed(0)
        tokens = torch.randint(256, (4, 9))
        loss = GPT(TINY)(tokens[:, :-1], tokens[:, 1:])
        assert loss.item() == pytest.approx(5.545, abs=0.1)

    def test_does_not_look_ahead(self) -> None:
        torch.manual_seed(0)
        model = GPT(TINY)
        embedded = torch.randn(1, 8, 16)
        changed = embedded.clone()
        changed[0, 5:] += 1.0
        before, after = model.blocks(embedded), model.blocks(changed)
        assert torch.equal(before[0, :5], after[0, :5])
        assert not torch.allclose(before[0, 5:], after[0, 5:])


class TestTraining:
    def batches(self, directory: Path, rank: int) -> train.Batches:
        text.write(text.Corpus(bytes(range(256)) * 8, bytes(range(256)) * 4, 1), directory)
        return train.Batches(directory, batch=2, context=8, seed=1, rank=rank, world_size=2)

    def test_targets_are_one_byte_later(self, tmp_path: Path) -> None:
        inputs, targets = self.batches(tmp_path, 0).draw()
        assert inputs.shape == targets.shape == (2, 8)
        assert torch.equal((inputs + 1) % 256, targets)

    def test_ranks_draw_different_windows_and_a_seed_repeats(self, tmp_path: Path) -> None:
        first = self.batches(tmp_path, 0).draw()[0]
        assert torch.equal(first, self.batches(tmp_path, 0).draw()[0])
        assert not torch.equal(first, self.batches(tmp_path, 1).draw()[0])

    def test_held_out_windows_are_shared_out_without_overlap(self, tmp_path: Path) -> None:
        windows = [
            tuple(window.tolist())
            for rank in range(2)
            for inputs, _ in self.batches(tmp_path, rank).held_out(3)
            for window in inputs
        ]
        assert len(windows) == 2 * 3 * 2
        assert len(set(windows)) == len(windows)

    def test_saved_state_comes_back_bit_for_bit(self) -> None:
        torch.manual_seed(0)
        model = GPT(TINY)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
        tokens = torch.randint(256, (4, 9))

        def step() -> None:
            optimizer.zero_grad(set_to_none=False)
            model(tokens[:, :-1], tokens[:, 1:]).backward()
            optimizer.step()

        def everything() -> list[torch.Tensor]:
            states = [value for state in optimizer.state.values() for value in state.values()]
            return [tensor.detach().clone() for tensor in (*model.parameters(), *states)]

        step()
        saved, before = train.SavedState(model, optimizer), everything()
        step()
        assert not all(map(torch.equal, before, everything()))
        saved.restore()
        assert all(map(torch.equal, before, everything()))

    @pytest.mark.parametrize(("steps", "blocks"), [(60, 6), (7, 3), (2, 6), (1, 1)])
    def test_blocks_cover_all_steps(self, steps: int, blocks: int) -> None:
        ends = train.block_ends(steps, blocks)
        assert ends[-1] == steps
        assert all(last > first for first, last in zip([0, *ends], ends, strict=False))

    def test_learning_rate_rises_then_falls_to_a_tenth(self) -> None:
        rates = [train.learning_rate(step, 100, 1.0) for step in range(100)]
        assert rates[:10] == pytest.approx([0.1 * n for n in range(1, 11)])
        assert rates[10:] == sorted(rates[10:], reverse=True)
        assert rates[-1] == pytest.approx(0.1, abs=0.01)


class TestInterface:
    def test_loopback_is_reached_through_lo(self) -> None:
        assert interface.interface_towards("127.0.0.1") == "lo"

    def test_counts_what_was_sent_on_all_but_loopback(self) -> None:
        table = (
            "Inter-|   Receive                            |  Transmit\n"
            " face |bytes packets errs drop fifo frame compressed multicast|bytes packets\n"
            "    lo: 5 1 0 0 0 0 0 0 7000 1 0 0 0 0 0 0\n"
            "  eth0: 9 1 0 0 0 0 0 0 120 1 0 0 0 0 0 0\n"
            "  eth1:9 1 0 0 0 0 0 0 3 1 0 0 0 0 0 0\n"
        )
        assert interface._sent_bytes(table) == 123


class TestResult:
    def test_takes_medians_over_ranks_and_leaves_the_warm_up_out(self) -> None:
        run = summary()
        assert run.step_ms == pytest.approx(500)
        assert run.no_communication_step_ms == pytest.approx(300)
        assert run.exposed_share == pytest.approx(0.4)
        assert run.tokens_per_s == pytest.approx(800)
        assert run.sent_mb_per_step == pytest.approx(2.0)
        assert run.wall_s == pytest.approx(10)
        assert run.final_loss == pytest.approx(4.5)
        assert run.training.loss[0] == pytest.approx(5.4)
        assert run.training.seconds[-1] == pytest.approx(3 * 9 + 3 * 0.5)
        assert run.held_out.step == [0, 3, 6]
        assert run.held_out.seconds == pytest.approx([0, 27, 28.5])

    def test_a_rank_that_did_not_finish_is_an_error(self) -> None:
        ranks = [rank_events(0), rank_events(1)[:-1]]
        with pytest.raises(result.IncompleteRunError, match="gloo"):
            result.summarize("gloo", ranks, 400, own_interfaces=True)

    def test_json_has_the_promised_keys_and_reads_back(self) -> None:
        whole = whole_result(summary(), summary("gradwire", step=0.4))
        fields = json.loads(result.to_json(whole))
        assert {"link_rate", "no_communication_step_ms", "hosts", "runs"} <= fields.keys()
        for run in fields["runs"]:
            assert {
                "name",
                "step_ms",
                "tokens_per_s",
                "exposed_share",
                "final_loss",
                "no_communication_step_ms",
            } <= run.keys()
        assert result.from_json(result.to_json(whole)) == whole

    def test_files_are_written_whole(self, tmp_path: Path) -> None:
        result.write_whole(tmp_path / "result.json", "{}")
        assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


class TestReport:
    def test_table_has_a_line_a_run(self) -> None:
        heading, gloo, gradwire = report.table(
            whole_result(summary(), summary("gradwire", step=0.4))
        ).splitlines()
        assert "exposed share" in heading
        assert gloo.split()[:3] == ["gloo", "500", "ms"]
        assert "25.0%" in gradwire

    @pytest.mark.parametrize(
        ("step", "expected"), [(0.25, "at 2.00x"), (0.5, "as fast as"), (1.0, "only 0.50x")]
    )
    def test_verdict_tells_the_truth(self, step: float, expected: str) -> None:
        assert expected in report.verdict(whole_result(summary(), summary("gradwire", step=step)))

    def test_page_is_self_contained_and_escapes(self) -> None:
        page = report.render(whole_result(summary(), summary("gradwire", 0.4), note="a & b"))
        assert page.count("<svg") == 3
        assert not re.search(r"https?://|src=|<link|@import|url\(", page)
        assert "tiny &lt;b&gt;" in page
        assert "a &amp; b" in page

    def test_a_single_run_has_a_page_too(self) -> None:
        assert "Training over gloo" in report.render(whole_result(summary()))


class TestPlots:
    @pytest.mark.parametrize(
        ("low", "high", "expected"),
        [(0, 60, [0, 10, 20, 30, 40, 50, 60]), (2.95, 5.6, [3, 3.5, 4, 4.5, 5, 5.5]), (1, 1, [1])],
    )
    def test_ticks_are_round(self, low: float, high: float, expected: list[float]) -> None:
        assert ticks(low, high) == pytest.approx(expected)

    def test_all_points_lie_inside_the_picture(self) -> None:
        drawn = line_chart([Line([0, 50, 120], [5.5, 3.0, 2.5], "red", "strong")], "x", "y")
        points = re.search(r'points="([^"]+)"', drawn)
        assert points
        for pair in points[1].split():
            x, y = map(float, pair.split(","))
            assert 0 <= x <= 560
            assert 0 <= y <= 330

    def test_bars_are_as_long_as_their_parts(self) -> None:
        drawn = stacked_bars([Bar("a", (300, 100), "25 %")], ("blue", "red"), "ms")
        compute, exposed = (float(width) for width in re.findall(r'width="([\d.]+)" height', drawn))
        assert compute == pytest.approx(3 * exposed, rel=0.01)


class TestEvents:
    def test_follower_leaves_a_half_written_line_for_later(self, tmp_path: Path) -> None:
        path = tmp_path / "rank0.jsonl"
        follower = EventFollower(path)
        assert follower.read() == []
        path.write_text('{"event": "a"}\n{"eve')
        assert follower.read() == [{"event": "a"}]
        with path.open("a") as file:
            file.write('nt": "b"}\n')
        assert follower.read() == [{"event": "b"}]
        assert follower.events == [{"event": "a"}, {"event": "b"}]

    STARTED: dict[str, Any] = {"event": "started", "at": 1.0}  # noqa: RUF012
    STEP: dict[str, Any] = {"event": "step", "step": 7, "at": 2.0}  # noqa: RUF012

    def test_a_killed_rank_comes_before_those_that_noticed(self) -> None:
        lost = {"event": "failed", "error": "lost rank 1", "at": 3.0}
        ranks = [[self.STARTED, self.STEP, lost], [self.STARTED, self.STEP]]
        endings = ["rank 0 exited with status 1", "rank 1 was ended by SIGKILL"]
        assert diagnose(ranks, endings) == [
            "rank 1 was ended by SIGKILL after step 7",
            "rank 0 failed after step 7: lost rank 1",
        ]

    def test_those_that_the_lab_ended_are_not_blamed(self) -> None:
        ranks = [[self.STARTED, self.STEP], [self.STARTED]]
        said = ["gradwire lab exited with status 1", "rank 1 on host 1 was ended by SIGKILL"]
        assert diagnose(ranks, said) == [
            "rank 1 was ended by SIGKILL before its first step",
            "gradwire lab exited with status 1",
        ]

    def test_ranks_that_never_started_are_not_called_killed(self) -> None:
        findings = diagnose([[], []], ["gradwire lab exited with status 2"])
        assert findings == [
            "no rank came so far as to report anything",
            "gradwire lab exited with status 2",
        ]


class TestJob:
    def test_ends_everything_when_left(self, tmp_path: Path) -> None:
        sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
        with Job(over_loopback(2, sleeper), tmp_path / "output.log") as job:
            assert job.running()
            pids = [process.pid for process in job._processes]
        for pid in pids:
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)

    def test_repeats_what_the_lab_said_about_a_rank(self, tmp_path: Path) -> None:
        program = [sys.executable, "-c", "print('gradwire lab: rank 2 on host 2 was ended')"]
        with Job(over_loopback(1, program), tmp_path / "output.log") as job:
            while job.running():
                time.sleep(0.02)
            assert job.failures() == ["rank 2 on host 2 was ended"]

    def test_names_the_rank_that_failed(self, tmp_path: Path) -> None:
        program = [
            sys.executable,
            "-c",
            "import os, sys; sys.exit(3 * (os.environ['RANK'] == '1'))",
        ]
        with Job(over_loopback(2, program), tmp_path / "output.log") as job:
            while job.running():
                time.sleep(0.02)
            assert job.failures() == ["rank 1 exited with status 3"]


def demo_command(out: Path, *more: str) -> list[str]:
    program = [sys.executable, str(DEMO / "run.py"), "--quick", "--hosts", "2"]
    return [*program, "--network", "loopback", "--out", str(out), *more]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    out = tmp_path_factory.mktemp("demo")
    done = subprocess.run(
        demo_command(out, "--backends", "gloo,gloo"),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    yield out, done.stdout


class TestWhole:
    def test_leaves_a_result_and_a_report(self, finished: tuple[Path, str]) -> None:
        out, printed = finished
        whole = result.from_json((out / "result.json").read_text())
        assert [run.name for run in whole.runs] == ["gloo", "gloo-2"]
        assert whole.network == "loopback"
        assert all(run.step_ms > 0 and run.no_communication_step_ms > 0 for run in whole.runs)
        assert (out / "report.html").read_text().startswith("<!doctype html>")
        assert report.table(whole) in printed
        assert "can't show" in printed

    def test_learns_and_learns_the_same_again(self, finished: tuple[Path, str]) -> None:
        # Measuring without communication in between must leave no trace in the training.
        first, second = result.from_json((finished[0] / "result.json").read_text()).runs
        assert first.held_out.loss[-1] < first.held_out.loss[0] - 0.3
        assert first.training.loss == second.training.loss
        assert first.final_loss == second.final_loss

    def test_a_failed_run_says_who_and_leaves_no_result(self, tmp_path: Path) -> None:
        (tmp_path / "result.json").write_text("of an earlier run")
        done = subprocess.run(
            demo_command(tmp_path, "--backends", "nonesuch"),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 1
        assert re.search(r"rank \d failed while it joined the job: .*nonesuch", done.stderr)
        assert not (tmp_path / "result.json").exists()
        assert not (tmp_path / "report.html").exists()

    def test_ctrl_c_ends_all_ranks(self, tmp_path: Path) -> None:
        demo = subprocess.Popen(
            demo_command(tmp_path, "--backends", "gloo", "--steps", "100000"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # Where the tests run in the background, the interrupt would be inherited as ignored.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        events = tmp_path / "runs" / "gloo" / "rank1.jsonl"
        deadline = time.monotonic() + 240
        while time.monotonic() < deadline and not (
            events.exists() and b'"step"' in events.read_bytes()
        ):
            time.sleep(0.1)
        demo.send_signal(signal.SIGINT)
        _, errors = demo.communicate(timeout=60)
        assert demo.returncode == 130, errors
        assert "interrupted" in errors
        assert _processes_naming(str(tmp_path)) == []
        assert not (tmp_path / "result.json").exists()

    @pytest.mark.parametrize(
        "arguments",
        [["--hosts", "0"], ["--backends", "gloo,"], ["--steps", "-3"], ["--network", "moon"]],
    )
    def test_bad_usage_is_status_2(self, arguments: list[str]) -> None:
        done = subprocess.run(
            [sys.executable, str(DEMO / "run.py"), *arguments], capture_output=True, check=False
        )
        assert done.returncode == 2

    def test_a_missing_program_is_named(self, tmp_path: Path) -> None:
        done = subprocess.run(
            [
                *(sys.executable, str(DEMO / "run.py")),
                *("--out", str(tmp_path), "--gradwire", str(tmp_path / "gradwire")),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 1
        assert str(tmp_path / "gradwire") in done.stderr


def _processes_naming(word: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has just ended
        if word in command:
            found.append(command)
    return found
