"""`make convergence`: whether training with compressed gradients ends at the same loss.

Trains a small GPT on 4 hosts of the lab, once for each arm (way in which gradients travel) and
seed, and compares final held-out losses seed by seed. Results are kept, so that the next call goes
on where this one ended. `--write` lays out docs/convergence.md from the stored results alone.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "demo"))

import document  # noqa: E402
import text  # noqa: E402
from arms import BY_NAME, SETS  # noqa: E402
from launch import Job, Launch  # noqa: E402
from protocol import PROTOCOLS, Protocol  # noqa: E402
from stored import load, missing, save_protocol  # noqa: E402

RESULTS = Path(__file__).resolve().parent / "results"


def main() -> int:
    """Do the runs that are missing, as far as the time allows, and write the page."""
    options = parse()
    deadline = time.time() + 60 * options.minutes
    status = 0
    if not options.write:
        with tempfile.TemporaryDirectory() as folder:
            protocol = PROTOCOLS[options.protocol](prepare_text(Path(folder)))
            status = run_missing(protocol, options, Path(folder), deadline)
    document.write(RESULTS, options.out)
    print(f"wrote {options.out}")
    return status


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gradwire", type=Path, default=ROOT / "target/release/gradwire")
    parser.add_argument("--minutes", type=float, default=30, help="begin no run later than this")
    parser.add_argument("--protocol", choices=PROTOCOLS, default="4-ranks")
    parser.add_argument("--seeds", type=int, help="for each arm, instead of what it asks for")
    parser.add_argument("--arms", help="names of arms, separated by commas; all if not given")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/convergence.md")
    parser.add_argument("--write", action="store_true", help="only write the page")
    options = parser.parse_args()
    options.arms = options.arms.split(",") if options.arms else SETS[options.protocol]
    unknown = [name for name in options.arms if name not in BY_NAME]
    if unknown:
        parser.error(f"no such arms: {', '.join(unknown)}; there are {', '.join(BY_NAME)}")
    return options


def prepare_text(folder: Path) -> str:
    """Write the text to a folder; return its fingerprint, which results are filed under."""
    corpus = text.collect(text.standard_library())
    text.write(corpus, folder)
    return hashlib.sha256(corpus.train + b"\0" + corpus.held_out).hexdigest()


def run_missing(
    protocol: Protocol, options: argparse.Namespace, folder: Path, deadline: float
) -> int:
    """Do the runs that have no result yet; return 0, or 1 if something failed."""
    results = RESULTS / protocol.file_name
    seeds = {name: options.seeds or BY_NAME[name].seeds for name in options.arms}
    runs = missing(load(results), seeds)
    save_protocol(results, protocol)
    print(f"{len(runs)} runs are missing; results go to {results}", flush=True)
    status = 0
    with contextlib.ExitStack() as stack:
        jobs = []
        for link in sorted({BY_NAME[name].link for name, _ in runs}):
            mine = [run for run in runs if BY_NAME[run[0]].link == link]
            program = rank_program(protocol, mine, folder, results, deadline)
            launch = in_lab(options.gradwire, protocol, link, program)
            job = Job([launch], folder / f"output-{link or 'unshaped'}.txt")
            jobs.append(stack.enter_context(job))
        wait(jobs, results)
        for job in jobs:
            if failures := job.failures():
                status = 1
                print(*failures, sep="\n", file=sys.stderr)
                print(job.output.read_text(errors="replace")[-4000:], file=sys.stderr)
    left = missing(load(results), seeds)
    print(f"{len(left)} runs are left for the next call" if left else "all runs are done")
    return status


def wait(jobs: Sequence[Job], results: Path) -> None:
    """Wait until all jobs have ended, and say which results come in."""
    known = len(load(results))
    while any([job.running() for job in jobs]):
        time.sleep(1)
        arrived = load(results)
        for result in arrived[known:]:
            arm, seed, loss = result["arm"], result["seed"], result["held_out_loss"]
            print(f"seed {seed}, {arm}: {loss:.5f} ({result['seconds']:.0f} s)", flush=True)
        known = len(arrived)


def rank_program(
    protocol: Protocol,
    runs: Sequence[tuple[str, int]],
    folder: Path,
    results: Path,
    deadline: float,
) -> list[str]:
    """Return the command that every rank runs."""
    return [
        *(sys.executable, str(Path(__file__).with_name("training_rank.py"))),
        *(
            "--protocol",
            json.dumps(asdict(protocol)),
            "--runs",
            json.dumps(runs),
            "--text",
            str(folder),
        ),
        *("--results", str(results), "--deadline", str(deadline)),
    ]


def in_lab(gradwire: Path, protocol: Protocol, link: str, program: Sequence[str]) -> Launch:
    """Return what starts a program on every rank, on hosts whose links have the given rate."""
    shaped = ["--rate", link] if link else []
    hosts = ["--hosts", str(protocol.hosts), "--ranks-per-host", str(protocol.ranks_per_host)]
    name = f"convergence-{os.getpid()}-{link or 'unshaped'}"
    command = [str(gradwire), "lab", "run", "--name", name, *hosts, *shaped, "--", *program]
    return Launch("gradwire lab", command, {}, signal.SIGINT)


if __name__ == "__main__":
    # So that the ranks are ended too, also where a shell has SIGINT ignored.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
