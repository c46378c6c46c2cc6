"""Run PyTorch's `DistributedTest` on Gloo and on gradwire, and compare.

Every test that passes on Gloo must pass on gradwire; otherwise the exit status is 1.

    python tests/c10d/run_suite.py --fast             # a dozen tests that stand for the rest
    python tests/c10d/run_suite.py                    # the whole suite
    python tests/c10d/run_suite.py --backend gradwire --baseline c10d-gloo.json
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

HERE = Path(__file__).resolve().parent

FAST_TESTS = [
    "test_DistributedDataParallelCPU",
    "test_accumulate_gradients_no_sync",
    "test_all_gather_coalesced_complex",
    "test_all_gather_object_default_pg",
    "test_all_reduce_full_group_product",
    "test_all_reduce_sum_complex",
    "test_all_reduce_coalesced_sum",
    "test_barrier_timeout_full_group",
    "test_batch_isend_irecv_gloo_tags",
    "test_gather",
    "test_monitored_barrier_gloo",
    "test_scatter_object_list",
    "test_send_recv_any_source",
    "test_sparse_all_reduce_sum",
]
"""One or two tests of each kind of collective, of groups, timeouts and DDP."""


class Result(TypedDict):
    """How one test ended on one backend."""

    name: str
    outcome: str
    seconds: float
    detail: str


Results = dict[str, Result]


class Worker:
    """A process that runs the suite's tests for one backend, one after the other.

    Parameters
    ----------
    backend
        The backend under test.
    world_size
        Ranks per test.
    log
        Where the tests' own output goes; appended to.
    """

    def __init__(self, backend: str, world_size: int, log: Path) -> None:
        environment = {
            **os.environ,
            "BACKEND": backend,
            "WORLD_SIZE": str(world_size),
            "INIT_METHOD": "file:///replaced/before/each/test",
            "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": "100",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(
                filter(None, [str(HERE), os.environ.get("PYTHONPATH", "")])
            ),
        }
        with log.open("a") as output:
            self._process = subprocess.Popen(
                [sys.executable, str(HERE / "suite.py")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                env=environment,
                text=True,
            )

    def run(self, name: str) -> Result:
        """Run the test `name`; a worker that dies meanwhile makes it a failure."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            print(name, file=self._process.stdin, flush=True)
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if answer:
            result: Result = json.loads(answer)
            return result
        status = self._process.wait()
        detail = f"the test process ended with status {status}"
        return {"name": name, "outcome": "failed", "seconds": 0.0, "detail": detail}

    @property
    def alive(self) -> bool:
        """Whether the worker can take another test."""
        return self._process.poll() is None

    def close(self) -> None:
        """End the worker once its last test is over."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def run_backend(
    backend: str, names: Sequence[str], workers: int, world_size: int, log: Path
) -> Results:
    """Run the tests `names` on `backend`, `workers` of them side by side."""
    log.write_text("")
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    for name in names:
        waiting.put(name)
    results: Results = {}

    def work() -> None:
        worker: Worker | None = None
        while True:
            try:
                name = waiting.get_nowait()
            except queue.Empty:
                break
            if worker is None or not worker.alive:
                worker = Worker(backend, world_size, log)
            result = worker.run(name)
            results[name] = result
            line = f"{backend:9} {len(results):4}/{len(names)} {result['outcome']:8}"
            print(f"{line} {result['seconds']:6.1f} s  {name}", flush=True)
        if worker is not None:
            worker.close()

    threads = [threading.Thread(target=work) for _ in range(min(workers, len(names)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def list_tests() -> list[str]:
    """Return the names of all tests in the suite of the installed PyTorch."""
    program = (
        "import unittest, suite;"
        "print(*unittest.TestLoader().getTestCaseNames(suite.TestBackend), sep='\\n')"
    )
    environment = {
        **os.environ,
        "BACKEND": "gloo",
        "WORLD_SIZE": "3",
        "INIT_METHOD": "file:///unused",
    }
    listing = subprocess.run(
        [sys.executable, "-c", program],
        cwd=HERE,
        env=environment,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return listing.stdout.split()


def compare(gloo: Results, gradwire: Results) -> list[str]:
    """Print both backends' results side by side; return what passes on Gloo only."""
    common = [name for name in gloo if name in gradwire]
    pairs = Counter((gloo[name]["outcome"], gradwire[name]["outcome"]) for name in common)
    outcomes = ("passed", "skipped", "failed")
    print("\n" + " " * 24 + "gradwire")
    print(f"{'Gloo':24}" + "".join(f"{outcome:>10}" for outcome in outcomes))
    for outcome in outcomes:
        row = "".join(f"{pairs[outcome, other]:10}" for other in outcomes)
        print(f"{outcome:24}{row}")

    seconds = [sum(results[name]["seconds"] for name in common) for results in (gloo, gradwire)]
    print(f"\ntest time: Gloo {seconds[0]:.0f} s, gradwire {seconds[1]:.0f} s")
    lost = sorted(
        name
        for name in common
        if gloo[name]["outcome"] == "passed" and gradwire[name]["outcome"] != "passed"
    )
    for name in lost:
        result = gradwire[name]
        print(f"\nLOST {name}: {result['outcome']}\n{result['detail']}")
    return lost


def _has_passed(result: Result) -> bool:
    return result["outcome"] == "passed"


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tests", nargs="*", help="names of tests; default: all")
    parser.add_argument(
        "--fast",
        action="store_true",
        help="a dozen representative tests, on Gloo only those that fail on gradwire",
    )
    parser.add_argument(
        "--backend",
        choices=["gloo", "gradwire", "both"],
        default="both",
        help="what to run",
    )
    parser.add_argument("--baseline", type=Path, help="Gloo's stored results, instead of a run")
    parser.add_argument("--workers", type=int, default=3, help="tests side by side")
    parser.add_argument("--world-size", type=int, default=3, help="ranks per test")
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("target/c10d"),
        help="folder for results (JSON) and logs",
    )
    return parser.parse_args()


def main() -> int:
    """Run, store and compare; return the exit status."""
    arguments = parse_arguments()
    names = arguments.tests or (FAST_TESTS if arguments.fast else list_tests())
    arguments.output.mkdir(parents=True, exist_ok=True)
    results: dict[str, Results] = {}
    if arguments.baseline is not None:
        results["gloo"] = json.loads(arguments.baseline.read_text())
    for backend in ("gradwire", "gloo"):
        if backend in results or arguments.backend not in (backend, "both"):
            continue
        if backend == "gloo" and arguments.fast and "gradwire" in results:
            passed = [one["name"] for one in results["gradwire"].values() if _has_passed(one)]
            names = [name for name in names if name not in passed]
        if not names:
            return 0
        results[backend] = run_backend(
            backend,
            names,
            arguments.workers,
            arguments.world_size,
            arguments.output / f"{backend}.log",
        )
        stored = json.dumps(results[backend], indent=1, sort_keys=True)
        (arguments.output / f"{backend}.json").write_text(stored + "\n")
    if len(results) < 2:
        return 0
    return 1 if compare(results["gloo"], results["gradwire"]) else 0


if __name__ == "__main__":
    sys.exit(main())
