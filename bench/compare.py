"""Compare gradwire with Gloo, OpenMPI and MPICH on this machine.

All contenders of a table are measured in turn, round after round, so that whatever else the
machine does meets all of them. Writes a page for people (``--out``) and, on request, all figures
(``--json``). Exit status 1 if gradwire could not be measured; a target that is missed is said in
the page and does not fail the run.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import page
from contenders import (
    HERE,
    Contender,
    RunError,
    gradwire,
    is_gradwire_installed,
    mpich,
    openmpi,
    through_torch,
)
from figures import Codecs, Link, MemoryUse, Priority, Record, Table

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
SIZES = [8, KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB]
QUICK_SIZES = [8, 64 * KIB, MIB, 16 * MIB]
PARTS = ("shm", "tcp", "torch", "lab", "codecs", "priority", "memory")
LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo"}
FOUR_CONNECTIONS = {"GLOO_SOCKET_IFNAME": "lo,lo,lo,lo"}
LAB_HOSTS = 4
LAB_RATE = "1gbit"
CODECS = ("bf16", "int8", "int6", "int4", "int4/64+uniform", "sign1")


def main() -> int:
    """Measure what was asked for and write it down."""
    options = arguments()
    record = Record(rounds=options.rounds, load=others_load())
    sizes = QUICK_SIZES if options.quick else SIZES
    parts: dict[str, Callable[[], None]] = {
        "shm": lambda: shared_memory(record, options.gradwire, sizes),
        "tcp": lambda: tcp(record, options.gradwire, sizes),
        "torch": lambda: pytorch(record, sizes),
        "lab": lambda: lab(record, options.gradwire),
        "codecs": lambda: codecs(record, options.gradwire),
        "priority": lambda: priority(record, options.gradwire),
        "memory": lambda: memory(record, options.gradwire),
    }
    for name in PARTS:
        if name in options.only:
            parts[name]()
    if options.json:
        options.json.write_text(json.dumps(record.raw(), indent=1) + "\n")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(page.write(record, page.written_by_hand(options.out)))
    say(f"wrote {options.out}")
    for target in record.targets():
        say(f"{target.verdict():9} {target.text}: {target.measured}")
    return 1 if record.has_gradwire_failed else 0


def others_load() -> float:
    """Measure how many cores other programs keep busy at this moment."""
    before = idle_seconds()
    start = time.monotonic()
    time.sleep(2)
    share = (idle_seconds() - before) / (time.monotonic() - start)
    return max((os.cpu_count() or 1) - share, 0.0)


def idle_seconds() -> float:
    """Read for how long cores have been idle, all of them together."""
    return float(Path("/proc/uptime").read_text().split()[1])


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--gradwire", type=Path, required=True, help="the gradwire command")
    parser.add_argument("--out", type=Path, required=True, help="the page to write")
    parser.add_argument("--json", type=Path, help="write all figures here too")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each table [3]")
    parser.add_argument("--quick", action="store_true", help="fewer sizes, one round")
    parser.add_argument(
        "--only",
        type=parts_of,
        default=list(PARTS),
        metavar="PARTS",
        help=f"some of {','.join(PARTS)}",
    )
    options = parser.parse_args()
    options.gradwire = options.gradwire.resolve()
    if not options.gradwire.is_file():
        parser.error(f"{options.gradwire} is not there; `cargo build --release` makes it")
    if options.rounds < 1:
        parser.error("--rounds: at least 1")
    if options.quick:
        options.rounds = 1
    return options


def parts_of(text: str) -> list[str]:
    """Read a list of parts."""
    names = text.split(",")
    if unknown := [name for name in names if name not in PARTS]:
        raise argparse.ArgumentTypeError(f"unknown {unknown}; there are {', '.join(PARTS)}")
    return names


def say(text: str) -> None:
    """Tell whoever waits how far it is."""
    print(f"bench: {text}", file=sys.stderr, flush=True)


def measure(record: Record, table: Table, contenders: Sequence[Contender]) -> None:
    """Fill a table: every contender once in each round."""
    record.tables.append(table)
    for number in range(record.rounds):
        for contender in contenders:
            # What failed once is not waited for again.
            if contender.name in table.failures:
                continue
            say(f"{table.title}: {contender.name}, round {number + 1} of {record.rounds}")
            try:
                table.add(contender.name, contender.run())
            except RunError as error:
                say(str(error))
                table.failures[contender.name] = str(error)


def shared_memory(record: Record, binary: Path, sizes: Sequence[int]) -> None:
    """All-reduce through shared memory against the two MPIs."""
    for ranks in (2, 4):
        table = Table("shm", f"Shared memory, {ranks} ranks", "all_reduce", ranks)
        contenders = [gradwire(binary, ranks, "shm", sizes), openmpi(ranks, "shm", sizes)]
        measure(record, table, [*contenders, mpich(ranks, sizes)])


def tcp(record: Record, binary: Path, sizes: Sequence[int]) -> None:
    """All-reduce over TCP on the loopback against Gloo and OpenMPI."""
    for ranks in (2, 4):
        table = Table("tcp", f"TCP over loopback, {ranks} ranks", "all_reduce", ranks)
        contenders = [
            gradwire(binary, ranks, "tcp", sizes),
            through_torch("Gloo", "gloo", ranks, "all_reduce", sizes, LOOPBACK),
            through_torch("Gloo x4", "gloo", ranks, "all_reduce", sizes, FOUR_CONNECTIONS),
            openmpi(ranks, "tcp", sizes),
        ]
        measure(record, table, contenders)


def pytorch(record: Record, sizes: Sequence[int]) -> None:
    """Through PyTorch, where the wires of both are what each of them picks, and gradwire on TCP."""
    if not is_gradwire_installed():
        record.notes.append("gradwire's Python package is not installed here: not measured.")
        return
    ranks = 2
    over_tcp = {"GRADWIRE_TRANSPORT": "tcp", "GRADWIRE_SOCKET_IFNAME": "lo"}
    for collective, smallest in (("all_reduce", KIB), ("reduce_scatter", 64 * KIB)):
        wanted = sorted({size for size in sizes if size >= smallest} | {smallest})
        table = Table("torch", f"PyTorch, {collective}, {ranks} ranks", collective, ranks)
        contenders = [
            through_torch("gradwire", "gradwire", ranks, collective, wanted, {}),
            through_torch("gradwire over TCP", "gradwire", ranks, collective, wanted, over_tcp),
            through_torch("Gloo", "gloo", ranks, collective, wanted, LOOPBACK),
            through_torch("Gloo x4", "gloo", ranks, collective, wanted, FOUR_CONNECTIONS),
        ]
        measure(record, table, contenders)


def lab(record: Record, binary: Path) -> None:
    """Hosts behind shaped links, with one NIC and with two."""
    run, bench = lab_bench(binary)
    link = Contender("link", [*run, "--", sys.executable, str(HERE / "link_rank.py")])
    one = Contender("one NIC", [*run, "--", *bench])
    two = Contender("two NICs", [*run, "--nics", "2", "--", *bench])
    record.link = Link(LAB_HOSTS, LAB_RATE)
    for number in range(record.rounds):
        say(f"lab, {LAB_HOSTS} hosts at {LAB_RATE}, round {number + 1} of {record.rounds}")
        try:
            record.link.add(link.run(), one.run(), two.run())
        except RunError as error:
            say(str(error))
            record.link.failure = str(error)
            return


def lab_bench(binary: Path) -> tuple[list[str], list[str]]:
    """Return the start of a command in the lab, and the bench of 64 MiB to run there."""
    run = [str(binary), "lab", "run", "--hosts", str(LAB_HOSTS), "--rate", LAB_RATE]
    run += ["--no-prefix", "--timeout", "110s"]
    bench = [str(binary), "bench", "--json", "-b", "64M", "-e", "64M", "-w", "1", "-n", "5"]
    return run, bench


def codecs(record: Record, binary: Path) -> None:
    """All-reduce between hosts behind shaped links, as it is and with codecs, in turn."""
    run, bench = lab_bench(binary)
    record.codecs = Codecs(LAB_HOSTS, LAB_RATE)
    for number in range(record.rounds):
        for codec in ("", *CODECS):
            say(f"lab, codec {codec or 'none'}, round {number + 1} of {record.rounds}")
            option = ["--codec", codec] if codec else []
            try:
                result = Contender(codec or "none", [*run, "--", *bench, *option]).run()
            except RunError as error:
                say(str(error))
                record.codecs.failure = str(error)
                return
            record.codecs.add(codec, result)


def priority(record: Record, binary: Path) -> None:
    """Measure an urgent operation behind a large one, between hosts behind shaped links."""
    if not is_gradwire_installed():
        return
    run, _ = lab_bench(binary)
    rank = Contender("priority", [*run, "--", sys.executable, str(HERE / "priority_rank.py")])
    record.priority = Priority(LAB_HOSTS, LAB_RATE)
    for number in range(record.rounds):
        say(f"lab, urgent operations, round {number + 1} of {record.rounds}")
        try:
            record.priority.rounds.append(rank.run())
        except RunError as error:
            say(str(error))
            record.priority.failure = str(error)
            return


def memory(record: Record, binary: Path) -> None:
    """Measure what a rank takes beside its tensor, for a tensor of 64 MiB and one of 1 GiB."""
    for transport in ("shm", "tcp"):
        for size in (64 * MIB, GIB):
            say(f"memory, {size // MIB} MiB over {transport}")
            options = ("-n", "5", "-w", "1", "--check", "0")
            try:
                result: dict[str, Any] = gradwire(binary, 2, transport, [size], *options).run()
            except RunError as error:
                say(str(error))
                record.memory_failure = str(error)
                return
            record.memory.append(MemoryUse.read(result, size))


if __name__ == "__main__":
    sys.exit(main())
