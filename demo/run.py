"""The demo: trains the same GPT over one backend after the other and compares them.

Brings up hosts behind shaped links (``gradwire lab``), runs :mod:`train` on each with every
backend in turn, prints a table, and leaves ``result.json`` and ``report.html`` in ``--out``.
Exit status 0 for success, 1 for a failed run, 2 for bad usage.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import re
import shlex
import signal
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType

import report
import text
import timeline
from events import EventFollower, diagnose
from launch import Job, Launch, in_lab, over_loopback
from progress import Progress
from result import IncompleteRunError, Result, Run, summarize, to_json, write_whole

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
RESULT = "result.json"
PARALLELIZE, TRACE = "parallelize", "trace"
STALL_S = 300.0
OUTPUT_LINES = 15


class DemoError(Exception):
    """The demo can't go on; the message says why and what to do."""


@dataclass(frozen=True)
class Size:
    """How much to train, and what.

    Attributes
    ----------
    steps, blocks, steps_without_communication
        Training steps; blocks they are split into; steps to measure after each block.
    held_out_batches
        Held-out batches a rank judges the model by after each block.
    batch, context
        Windows per rank and step; bytes per window.
    layers, width, heads
        Shape of the model.
    """

    steps: int
    blocks: int
    steps_without_communication: int
    held_out_batches: int
    batch: int
    context: int
    layers: int
    width: int
    heads: int

    def arguments(self) -> list[str]:
        """Return the size as arguments of :mod:`train`."""
        return [
            part
            for name, value in vars(self).items()
            for part in (f"--{name.replace('_', '-')}", str(value))
        ]


FULL = Size(
    steps=18,
    blocks=3,
    steps_without_communication=3,
    held_out_batches=2,
    batch=8,
    context=64,
    layers=6,
    width=384,
    heads=6,
)
QUICK = Size(
    steps=12,
    blocks=2,
    steps_without_communication=2,
    held_out_batches=1,
    batch=2,
    context=32,
    layers=2,
    width=64,
    heads=2,
)


@dataclass(frozen=True)
class Network:
    """What the ranks talk over.

    Attributes
    ----------
    kind
        ``lab`` or ``loopback``.
    link_rate
        Rate of each host's link, or ``unshaped``.
    note
        Why loopback, and what it can't show.
    """

    kind: str
    link_rate: str
    note: str


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description="Trains a GPT on several hosts behind shaped links, over each backend in turn."
    )
    parser.add_argument("--hosts", type=_positive, default=4, help="one rank on each (default 4)")
    parser.add_argument("--rate", default="500mbit", help="rate of each link (default 500mbit)")
    parser.add_argument("--steps", type=_positive, help=f"training steps (default {FULL.steps})")
    parser.add_argument(
        "--batch",
        type=_positive,
        help=f"windows of {FULL.context} bytes per rank and step (default {FULL.batch}); more"
        " computation for the same communication",
    )
    parser.add_argument(
        "--backends",
        type=_backends,
        default=["gloo", "gradwire", "gradwire+parallelize+adaptive"],
        help="in this order; DDP's unless +parallelize follows, with a codec behind another +"
        " (default gloo,gradwire,gradwire+parallelize+adaptive)",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=HERE, help="where the result goes")
    parser.add_argument(
        "--network",
        choices=["auto", "lab", "loopback"],
        default="auto",
        help="auto: the lab, or loopback where network namespaces are not allowed",
    )
    parser.add_argument(
        "--gradwire",
        type=Path,
        default=ROOT / "target/release/gradwire",
        help="the gradwire program (default target/release/gradwire)",
    )
    parser.add_argument(
        "--quick", action="store_true", help="a tiny model for a few steps: checks the demo only"
    )
    return parser.parse_args(arguments)


def choose_network(options: argparse.Namespace) -> Network:
    """Find out whether the lab works here.

    Raises
    ------
    DemoError
        The program is missing, or the lab was asked for and does not work.
    """
    if options.network == "loopback":
        return _loopback("Asked for with --network loopback.")
    if not options.gradwire.is_file():
        raise DemoError(
            f"{options.gradwire} is missing: build it (cargo build --release -p gradwire-cli), name"
            " another with --gradwire, or do without links with --network loopback"
        )
    check = subprocess.run(
        [str(options.gradwire), "lab", "check"], capture_output=True, text=True, check=False
    )
    if check.returncode == 0:
        return Network("lab", options.rate, "")
    why = " ".join((check.stderr + check.stdout).split())
    if options.network == "lab":
        raise DemoError(f"no lab on this machine: {why}")
    return _loopback(f"No network namespaces on this machine ({why}).")


def train_over(
    name: str,
    backend: str,
    options: argparse.Namespace,
    size: Size,
    network: Network,
) -> tuple[Run, str]:
    """Train over one backend; return its result and the command that started it.

    Raises
    ------
    DemoError
        A rank failed or nothing happened for long; the message names the ranks.
    """
    directory = _fresh(options.out / "runs" / name, options.hosts)
    launches = _launches(backend, options, size, network, directory)
    followers = [EventFollower(directory / f"rank{rank}.jsonl") for rank in range(options.hosts)]
    progress = Progress(name, size.steps, sys.stdout)
    output = directory / "output.log"
    with Job(launches, output) as job:
        try:
            _follow(job, followers, progress)
        finally:
            progress.finish()
        failures = job.failures()
    ranks = [follower.events for follower in followers]
    if failures:
        raise DemoError(_failure(name, diagnose(ranks, failures), output))
    tokens = options.hosts * size.batch * size.context
    try:
        run = summarize(name, ranks, tokens, own_interfaces=network.kind == "lab")
    except IncompleteRunError as error:
        raise DemoError(_failure(name, [str(error)], output)) from error
    trace = directory / TRACE / "rank0.json"
    if trace.exists():
        run = replace(run, timeline=timeline.read(trace))
    return run, _shown(launches[0].command)


def run_demo(options: argparse.Namespace) -> Result:
    """Train over every backend, then print the table and write what the demo leaves."""
    began = time.monotonic()
    size = _size(options)
    options.out.mkdir(parents=True, exist_ok=True)
    for stale in (RESULT, report.PAGE):
        (options.out / stale).unlink(missing_ok=True)
    network = choose_network(options)
    corpus = text.collect(text.standard_library())
    text.write(corpus, options.out / "runs" / "text")
    settings = _settings(options, size, corpus)
    _print_opening(options, network, settings)

    runs, commands = [], [_shown([sys.executable, *sys.argv])]
    for name, backend in _named(options.backends):
        run, command = train_over(name, backend, options, size, network)
        runs.append(run)
        commands.append(command)
    result = Result(
        link_rate=network.link_rate,
        network=network.kind,
        network_note=network.note,
        no_communication_step_ms=statistics.median(run.no_communication_step_ms for run in runs),
        hosts=options.hosts,
        settings=settings,
        machine=_machine(),
        commands=commands,
        runs=runs,
    )
    write_whole(options.out / report.PAGE, report.render(result))
    write_whole(options.out / RESULT, to_json(result))
    _print_closing(options, result, time.monotonic() - began)
    return result


def main() -> int:
    """Run the demo; return its exit status."""
    signal.signal(signal.SIGTERM, _terminate)
    options = parse()
    try:
        run_demo(options)
    except (DemoError, text.TextError, OSError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("demo: interrupted; all ranks have been ended", file=sys.stderr)
        return 130
    return 0


def _follow(job: Job, followers: list[EventFollower], progress: Progress) -> None:
    heard = time.monotonic()
    running = True
    while running:
        # Asked before reading, so that the last events are read too.
        running = job.running()
        new = [follower.read() for follower in followers]
        for event in new[0]:
            progress.take(event)
        if any(new):
            heard = time.monotonic()
        elif time.monotonic() - heard > STALL_S:
            raise DemoError(
                f"no rank reported anything for {STALL_S:.0f} s; {job.output} may say why"
            )
        progress.refresh()
        if running:
            time.sleep(0.2)


def _launches(
    backend: str, options: argparse.Namespace, size: Size, network: Network, directory: Path
) -> list[Launch]:
    name, _, how = backend.partition("+")
    hides = how.split("+")[0] == PARALLELIZE
    codec = how.removeprefix(PARALLELIZE).removeprefix("+") if hides else how
    program = [
        sys.executable,
        str(HERE / "train.py"),
        *("--backend", name),
        *(("--codec", codec) if codec else ()),
        *(("--parallelize",) if hides else ()),
        *("--text", str(options.out.resolve() / "runs" / "text")),
        *("--events", str(directory.resolve())),
        *(("--trace", str(directory.resolve() / TRACE)) if name == "gradwire" else ()),
        *("--seed", str(options.seed)),
        *size.arguments(),
    ]
    if network.kind == "lab":
        return in_lab(options.gradwire, options.hosts, options.rate, program)
    return over_loopback(options.hosts, program)


def _failure(name: str, findings: list[str], output: Path) -> str:
    tail = output.read_text(encoding="utf-8", errors="replace").splitlines()[-OUTPUT_LINES:]
    return "\n".join(
        (
            f"the run over {name} failed:",
            *(f"  {finding}" for finding in findings),
            f"  the end of {output}:",
            *(f"    {line}" for line in tail),
        )
    )


def _fresh(directory: Path, hosts: int) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    for rank in range(hosts):
        (directory / f"rank{rank}.jsonl").unlink(missing_ok=True)
        (directory / TRACE / f"rank{rank}.json").unlink(missing_ok=True)
    return directory


def _named(backends: list[str]) -> list[tuple[str, str]]:
    """Pair each backend with a name; a repeated one gets its number: gloo, gloo-2."""
    before = [backends[:index].count(backend) for index, backend in enumerate(backends)]
    return [
        (f"{backend}-{count + 1}" if count else backend, backend)
        for backend, count in zip(backends, before, strict=True)
    ]


def _size(options: argparse.Namespace) -> Size:
    size = QUICK if options.quick else FULL
    steps = options.steps or size.steps
    # Blocks of one length: the machine drifts, and both kinds of steps must meet all of it.
    blocks = max(1, steps * size.blocks // size.steps)
    return replace(size, steps=steps, blocks=blocks, batch=options.batch or size.batch)


def _loopback(why: str) -> Network:
    note = (
        f"{why} The ranks talked over loopback, which has no bandwidth to run out of: this shows"
        " what each backend costs in processor time and that both learn the same. It can't show"
        " what a slow link costs or how much of it a backend hides."
    )
    return Network("loopback", "unshaped", note)


def _settings(options: argparse.Namespace, size: Size, corpus: text.Corpus) -> dict[str, str]:
    tokens = options.hosts * size.batch * size.context
    return {
        "Model": f"{size.layers} layers, width {size.width}, {size.heads} heads, float32",
        "Text": f"the Python {platform.python_version()} standard library:"
        f" {len(corpus.train) / 1e6:.1f} MB of {corpus.files} files to train on,"
        f" {len(corpus.held_out) / 1e6:.1f} MB held out",
        "Training": f"{size.steps} steps of {tokens} tokens (bytes): {options.hosts} ranks x"
        f" {size.batch} windows x {size.context}; AdamW, seed {options.seed}",
        "Measuring": f"{size.steps_without_communication} steps without communication after each"
        f" of {size.blocks} blocks",
    }


def _machine() -> dict[str, str]:
    return {
        "Processor": f"{_processor()}, {os.cpu_count()} logical cores for all hosts",
        "System": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "Python": platform.python_version(),
        "PyTorch": importlib.metadata.version("torch"),
        "Date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def _print_opening(options: argparse.Namespace, network: Network, settings: dict[str, str]) -> None:
    for name, value in settings.items():
        print(f"{name + ':':<11}{value}")
    where = f"{options.hosts} hosts, each behind a link of {network.link_rate}"
    print(f"{'Network:':<11}{network.note or where}\n", flush=True)


def _print_closing(options: argparse.Namespace, result: Result, seconds: float) -> None:
    print(f"\n{report.table(result)}\n")
    if sentence := report.verdict(result):
        print(f"{sentence}.")
    if result.network_note:
        print(result.network_note)
    print(f"{seconds:.0f} s in all. {_shown([str(options.out / report.PAGE)])}", flush=True)


def _shown(command: list[str]) -> str:
    """Quote a command for the shell, paths inside the tree relative to its root."""
    prefix = f"{ROOT}{os.sep}"
    return shlex.join(part.removeprefix(prefix) for part in command)


def _positive(value: str) -> int:
    number = int(value)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{value} is not a positive number")
    return number


def _backends(value: str) -> list[str]:
    names = value.split(",")
    parts = [part for name in names for part in name.split("+", 1)]
    if not all(re.fullmatch(r"\w[\w/+-]*", part) for part in parts):
        raise argparse.ArgumentTypeError(
            f"{value!r} is not a list of backends, like gloo,gradwire+adaptive"
        )
    return names


def _terminate(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
