"""The extension module: the Rust engine."""

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
    ) -> Handle:
        """Start an operation on memory given as (address, bytes); it must outlive the handle.

        `peer` is the other rank of `send` and `receive`; a receive without one takes what comes
        first. `waits_at_once` promises that the caller waits next.
        """

class Handle:
    """An operation in progress."""

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait for the end of the operation; raises `GradwireError` if it failed."""

    def is_completed(self) -> bool:
        """Return whether the operation is over, well or not."""

    def exception(self) -> BaseException | None:
        """Return what made the operation fail, `None` as long as nothing did."""

    def source(self) -> int | None:
        """Return the group rank whose message a receive matched."""
