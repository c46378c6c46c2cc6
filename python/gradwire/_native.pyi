"""The extension module: the Rust engine."""

import os
from pathlib import Path
from typing import Any

__version__: str

class Engine:
    """All connections and threads of one process.

    Parameters
    ----------
    rank, world_size
        This process among the engine's processes.
    store
        Anything with torch's `Store.set(key, bytes)`, `check([key])` and `get(key)`.
    timeout_s
        Seconds until an operation fails, unless its communicator or the operation says otherwise.
    options
        Overrides of `GRADWIRE_*` variables, by the lower-case rest of the variable's name.
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        store: Any,
        timeout_s: float,
        options: dict[str, str] | None = None,
    ) -> None: ...
    def communicator(self, name: str, ranks: list[int]) -> Communicator:
        """Open a communicator among the engine ranks `ranks`; `name` is the same on all."""

    def counters(self) -> dict[str, int]:
        """Return the engine's counters."""

    def count_encoded(self, before: int, after: int) -> None:
        """Count bytes that the caller sends encoded by itself, before and after."""

    def start_trace(self) -> None:
        """Start to record a trace, on all ranks: their clocks are compared first."""

    def write_trace(self, directory: str | os.PathLike[str]) -> Path:
        """End the trace and write `rank<N>.json` into a directory; return its path.

        All ranks do so; one that does not only costs a comparison of clocks, and two seconds.
        """

    def is_tracing(self) -> bool:
        """Return whether a trace is being recorded."""

    def record_span(
        self, name: str, category: str, start_ns: int, end_ns: int, arguments: str | None = None
    ) -> None:
        """Add a span of the calling thread to the trace.

        Times are `time.monotonic_ns()`; `arguments` is one JSON object.
        """

    def limit_in_flight(self, bytes: int | None) -> None:
        """Keep the bytes on their way to each peer over TCP to about so many.

        Urgent operations overtake others the sooner; with `None` the kernel fills the queues.
        """

    def shutdown(self, grace_s: float = 2.0) -> None:
        """End all connections and threads; what was sent before is given `grace_s` to arrive."""

class Communicator:
    """A group of ranks that communicate with each other."""

    def rank(self) -> int:
        """Return this process's rank in the group."""

    def size(self) -> int:
        """Return the number of ranks."""

    def timeout(self) -> float:
        """Return the seconds until an operation fails."""

    def set_timeout(self, seconds: float) -> None:
        """Set the seconds until an operation started from now on fails."""

    def abort(self, reason: str) -> None:
        """Make all operations of the group fail on all members."""

    def submit(
        self,
        collective: str,
        dtype: str,
        op: str,
        inputs: list[tuple[int, int]],
        outputs: list[tuple[int, int]],
        root: int = 0,
        peer: int | None = None,
        tag: int = 0,
        timeout_s: float | None = None,
        waits_at_once: bool = False,
        codec: str | None = None,
        error: list[tuple[int, int]] | tuple[()] = (),
        priority: int | None = None,
        label: str | None = None,
        tile_bytes: int | None = None,
    ) -> Handle:
        """Start an operation on memory given as (address, bytes); it must outlive the handle.

        `peer` is the other rank of `send` and `receive`; a receive without one takes what comes
        first. `waits_at_once` promises that the caller waits next. `codec` names how values
        travel; what it loses of this rank's contribution is left in `error`, unless that is empty.
        Operations with a lower `priority` (0 to 255, 128 for collectives and 64 for messages if
        not given) overtake others. `label` is what traces call it.
        `tile_bytes`, the same on all ranks, is the size of the pieces between which they overtake.
        """

class Codec:
    """A way to write float32 values in fewer bytes, by name: `int8`, `int4/64`, `bf16` ..."""

    def __init__(self, name: str) -> None: ...
    def name(self) -> str:
        """Return the full name, with all options."""

    def encoded_bytes(self, elements: int) -> int:
        """Return the bytes that so many values take."""

    def encode(self, values: tuple[int, int], wire: tuple[int, int], seed: int) -> None:
        """Encode values at (address, elements) into the bytes at (address, length)."""

    def decode_add(self, wire: tuple[int, int], values: tuple[int, int]) -> None:
        """Add what the bytes at (address, length) stand for to values at (address, elements)."""

class Handle:
    """An operation in progress."""

    def wait(self, timeout_s: float | None = None, drive: bool = True) -> None:
        """Wait for the end of the operation; raises `GradwireError` if it failed.

        With `drive` false others drive it: the background thread, if nobody else waits.
        """

    def is_completed(self) -> bool:
        """Return whether the operation is over, well or not."""

    def exception(self) -> BaseException | None:
        """Return what made the operation fail, `None` as long as nothing did."""

    def seconds_over(self) -> float | None:
        """Return for how many seconds the operation has been over, `None` while it is in flight."""

    def source(self) -> int | None:
        """Return the group rank whose message a receive matched."""

def set_label(label: str | None) -> str | None:
    """Label operations that this thread starts from now on; return the label until now."""

def sparse_bytes(elements: int, count: int) -> int:
    """Return the bytes of `count` of so many values in sparse form."""

def encode_top_k(values: tuple[int, int], count: int, wire: tuple[int, int]) -> None:
    """Write the `count` largest of the values at (address, elements) to (address, bytes)."""

def decode_sparse_add(wire: tuple[int, int], values: tuple[int, int]) -> None:
    """Add sparse values at (address, bytes) to the values at (address, elements)."""
