"""What was measured, and which targets it meets."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
GLOOS = ("Gloo", "Gloo x4")
MPIS = ("OpenMPI", "MPICH")


@dataclass(frozen=True)
class Target:
    """A figure to be reached.

    Parameters
    ----------
    text
        What is asked for.
    measured
        What was found, in words.
    met
        Whether that is enough; ``None`` where it was not measured.
    """

    text: str
    measured: str
    met: bool | None

    def verdict(self) -> str:
        """Say it in a word or two."""
        return {True: "met", False: "NOT MET", None: "not known"}[self.met]


@dataclass
class Table:
    """Times of several contenders at several sizes, each from several rounds.

    Parameters
    ----------
    part
        The part of the comparison: ``shm``, ``tcp`` or ``torch``.
    title
        As the page calls it.
    collective
        What was run.
    ranks
        Among how many.
    """

    part: str
    title: str
    collective: str
    ranks: int
    times: dict[str, dict[int, list[float]]] = field(default_factory=dict)
    p99: dict[str, dict[int, list[float]]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, result: dict[str, Any]) -> None:
        """Add one round of one contender."""
        for row in result["results"]:
            size = row["size_bytes"]
            self.times.setdefault(name, {}).setdefault(size, []).append(row["time_us"])
            self.p99.setdefault(name, {}).setdefault(size, []).append(row["time_us_p99"])
            if row.get("wrong"):
                self.failures[name] = f"{row['wrong']} wrong elements at {size} bytes"

    def names(self) -> list[str]:
        """Contenders that were measured, in order."""
        return list(self.times)

    def sizes(self) -> list[int]:
        """Sizes that were measured."""
        return sorted({size for times in self.times.values() for size in times})

    def time(self, name: str, size: int) -> float | None:
        """Median over the rounds of the median time, in microseconds."""
        times = self.times.get(name, {}).get(size)
        return statistics.median(times) if times else None

    def best(self, names: Sequence[str], size: int) -> float | None:
        """Pick the shortest of several contenders' times."""
        times = [time for name in names if (time := self.time(name, size)) is not None]
        return min(times, default=None)

    def ratio(self, names: Sequence[str], size: int) -> float | None:
        """How many times faster gradwire is than the best of others."""
        own, best = self.time("gradwire", size), self.best(names, size)
        return best / own if own and best else None

    def bus_bandwidth(self, name: str, size: int) -> float | None:
        """Bus bandwidth in GB/s, as nccl-tests defines it."""
        time = self.time(name, size)
        factor = (self.ranks - 1) / self.ranks * (2 if self.collective == "all_reduce" else 1)
        return size * factor / time / 1e3 if time else None


@dataclass
class Link:
    """All-reduce of 64 MiB between hosts behind shaped links, in bit/s of bus bandwidth."""

    hosts: int
    rate: str
    means: str = ""
    link: list[float] = field(default_factory=list)
    one_nic: list[float] = field(default_factory=list)
    two_nics: list[float] = field(default_factory=list)
    failure: str = ""

    def add(self, link: dict[str, Any], one: dict[str, Any], two: dict[str, Any]) -> None:
        """Add one round."""
        self.means = link["means"]
        self.link.append(link["bits_per_second"])
        self.one_nic.append(one["results"][0]["busbw_gbytes_per_s"] * 8e9)
        self.two_nics.append(two["results"][0]["busbw_gbytes_per_s"] * 8e9)


@dataclass
class Codecs:
    """Times of an all-reduce of 64 MiB between hosts behind shaped links, by codec, in us."""

    hosts: int
    rate: str
    times: dict[str, list[float]] = field(default_factory=dict)
    failure: str = ""

    def add(self, codec: str, result: dict[str, Any]) -> None:
        """Add one round; no codec is the empty name."""
        self.times.setdefault(codec, []).append(result["results"][0]["time_us"])

    def gain(self, codec: str) -> float | None:
        """How many times faster a codec makes it."""
        if codec not in self.times:
            return None
        return statistics.median(self.times[""]) / statistics.median(self.times[codec])


@dataclass
class Priority:
    """Seconds of an urgent operation alone, and behind a large one with and without a limit."""

    hosts: int
    rate: str
    rounds: list[dict[str, float]] = field(default_factory=list)
    failure: str = ""

    def seconds(self, name: str) -> float | None:
        """Median over the rounds: ``alone_s``, ``behind_s`` or ``behind_unlimited_s``."""
        return statistics.median(one[name] for one in self.rounds) if self.rounds else None

    def factor(self) -> float | None:
        """How many times longer it takes behind a large one."""
        alone, behind = self.seconds("alone_s"), self.seconds("behind_s")
        return behind / alone if alone and behind else None


@dataclass(frozen=True)
class MemoryUse:
    """What a rank took beside its tensor, in bytes; the rank that took most."""

    transport: str
    ranks: int
    size: int
    held: int
    scratch: int
    resident: int
    window: int

    @staticmethod
    def read(result: dict[str, Any], size: int) -> MemoryUse:
        """From ``gradwire bench --json``."""
        memory = result["memory"]
        return MemoryUse(
            result["transport"],
            result["ranks"],
            size,
            memory["bytes_held_peak"],
            memory["bytes_scratch_peak"],
            memory["resident_growth_bytes"],
            result["tile_bytes"] * result["window_tiles"],
        )

    def bound(self) -> int:
        """Most bytes of tiles: a window for each receive step (to reduce, to gather) and peer."""
        return 2 * (self.ranks - 1) * self.window


@dataclass
class Record:
    """The whole comparison."""

    rounds: int
    load: float
    tables: list[Table] = field(default_factory=list)
    link: Link | None = None
    codecs: Codecs | None = None
    priority: Priority | None = None
    memory: list[MemoryUse] = field(default_factory=list)
    memory_failure: str = ""
    notes: list[str] = field(default_factory=list)

    @property
    def has_gradwire_failed(self) -> bool:
        """Whether a run of gradwire failed or its result was wrong."""
        names = [name for table in self.tables for name in table.failures]
        lab = (self.link.failure if self.link else "") or (
            self.codecs.failure if self.codecs else ""
        )
        failed = any(name.startswith("gradwire") for name in names)
        late = self.priority.failure if self.priority else ""
        return failed or bool(lab or late or self.memory_failure)

    def raw(self) -> dict[str, Any]:
        """Every figure, for programs."""
        return {
            "rounds": self.rounds,
            "load": self.load,
            "tables": [vars(table) for table in self.tables],
            "link": vars(self.link) if self.link else None,
            "codecs": vars(self.codecs) if self.codecs else None,
            "priority": vars(self.priority) if self.priority else None,
            "memory": [vars(use) for use in self.memory],
            "notes": self.notes,
            "targets": [{**vars(it), "verdict": it.verdict()} for it in self.targets()],
        }

    def targets(self) -> list[Target]:
        """All targets, with what was found."""
        on_a_host = [*self._shared_memory(), *self._tcp(), *self._torch()]
        between = [*self._lab(), *self._codecs(), self._priority()]
        return [*on_a_host, *between, *self._memory()]

    def _table(self, part: str, ranks: int, collective: str = "all_reduce") -> Table:
        for table in self.tables:
            if (table.part, table.ranks, table.collective) == (part, ranks, collective):
                return table
        return Table(part, "", collective, ranks)

    def _shared_memory(self) -> list[Target]:
        two, four = self._table("shm", 2), self._table("shm", 4)
        smallest = two.time("gradwire", 8)
        return [
            at_least(
                "shared memory, 2 ranks: no slower than the faster MPI, 64 KiB to 64 MiB",
                two, MPIS, 64 * KIB, 1.0,
            ),
            Target(
                "shared memory, 2 ranks: all-reduce of 8 bytes within 5 us",
                f"{smallest:.1f} us" if smallest else "not measured",
                smallest <= 5 if smallest else None,
            ),
            at_least(
                "shared memory, 4 ranks: within 1.2x of the faster MPI, 64 KiB to 64 MiB",
                four, MPIS, 64 * KIB, 1 / 1.2,
            ),
        ]  # fmt: skip

    def _tcp(self) -> list[Target]:
        targets = []
        for ranks in (2, 4):
            table, where = self._table("tcp", ranks), f"TCP loopback, {ranks} ranks"
            text = f"{where}: 2x the bandwidth of Gloo (the faster form) from 1 MiB on"
            targets.append(at_least(text, table, GLOOS, MIB, 2.0))
            text = f"{where}: never slower than OpenMPI over TCP"
            targets.append(at_least(text, table, ["OpenMPI"], 0, 1.0))
        return targets

    def _torch(self) -> list[Target]:
        whole, scatter = self._table("torch", 2), self._table("torch", 2, "reduce_scatter")
        return [
            at_least(
                "PyTorch: all_reduce of 1 KiB in a tenth of Gloo's time",
                whole, GLOOS, KIB, 10.0, largest=KIB,
            ),
            at_least(
                "PyTorch: reduce-scatter at 2.5x Gloo's bandwidth", scatter, GLOOS, 0, 2.5
            ),
        ]  # fmt: skip

    def _lab(self) -> list[Target]:
        link = self.link
        share = rate_ratio(link, lambda it: (it.one_nic, it.link))
        gain = rate_ratio(link, lambda it: (it.two_nics, it.one_nic))
        return [
            Target(
                "lab, 4 hosts at 1 Gbit/s: 64 MiB at 95 % of a TCP stream's rate",
                f"{share:.1%}" if share else "not measured",
                share >= 0.95 if share else None,
            ),
            Target(
                "lab: two NICs at 1.8x of one",
                f"{gain:.2f}x" if gain else "not measured",
                gain >= 1.8 if gain else None,
            ),
        ]

    def _codecs(self) -> list[Target]:
        targets = []
        for codec, factor in (("int8", 3.5), ("int4", 6.5)):
            gain = self.codecs.gain(codec) if self.codecs else None
            text = f"lab, 4 hosts at 1 Gbit/s: {codec} at {factor}x the speed of float32"
            found = f"{gain:.2f}x" if gain else "not measured"
            targets.append(Target(text, found, gain >= factor if gain else None))
        return targets

    def _priority(self) -> Target:
        factor = self.priority.factor() if self.priority else None
        text = "lab, 4 hosts at 1 Gbit/s: 64 KiB behind 256 MiB within 3x of its time alone"
        found = f"{factor:.2f}x" if factor else "not measured"
        return Target(text, found, factor <= 3 if factor else None)

    def _memory(self) -> list[Target]:
        large = [use for use in self.memory if use.size == GIB]
        text = "memory for 1 GiB bounded by tiles in flight"
        if not large:
            return [Target(text, "not measured", None)]
        most = max(large, key=lambda use: use.held + use.scratch)
        within = all(use.held + use.scratch <= use.bound() for use in large)
        taken, bound = (most.held + most.scratch) / MIB, most.bound() / MIB
        return [Target(text, f"{taken:.2f} MiB, bound {bound:.0f} MiB", within)]


def at_least(
    text: str,
    table: Table,
    others: Sequence[str],
    smallest: int,
    factor: float,
    largest: int = 1 << 62,
) -> Target:
    """Whether gradwire is `factor` times as fast as the best of others at every size of a range."""
    ratios = {
        size: ratio
        for size in table.sizes()
        if smallest <= size <= largest and (ratio := table.ratio(others, size)) is not None
    }
    if not ratios:
        return Target(text, "not measured", None)
    worst = min(ratios, key=lambda size: ratios[size])
    missed = [size_name(size) for size, ratio in ratios.items() if ratio < factor]
    found = f"worst {ratios[worst]:.2f}x (at {size_name(worst)})"
    if missed:
        found += f"; missed at {', '.join(missed)}"
    return Target(text, found, not missed)


def rate_ratio(
    link: Link | None, pair: Callable[[Link], tuple[list[float], list[float]]]
) -> float | None:
    """Ratio of the medians of two lists of rates."""
    if link is None:
        return None
    above, below = pair(link)
    return statistics.median(above) / statistics.median(below) if above and below else None


def size_name(size: int) -> str:
    """Write a size as people do."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} B"
