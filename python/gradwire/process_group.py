"""The two shapes in which torch takes a backend: a whole process group, or one device's part."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import Backend, PrefixStore, ProcessGroup

from gradwire._native import Communicator
from gradwire.collectives import Collectives
from gradwire.engines import SharedEngine
from gradwire.lineage import Channel

BACKEND_NAME = "gradwire"

_DEVICES = [torch.device("cpu"), torch.device("cuda")]


class _Group(Collectives):
    """What both shapes share: the communicator's life and its timeout.

    Parameters
    ----------
    engine
        The engine that serves the group.
    owns_engine
        Whether the engine ends with this group.
    name
        The group's name, the same on all members.
    ranks
        The members' engine ranks, in the order of their group ranks.
    store
        The group's rendezvous store.
    timeout
        Until an operation fails.
    """

    supports_coalescing = False
    supports_splitting = True
    supports_shrinking = False

    def _open(
        self,
        engine: SharedEngine,
        owns_engine: bool,
        name: str,
        ranks: Sequence[int],
        store: Any,
        timeout: timedelta,
    ) -> None:
        self._engine = engine
        self._owns_engine = owns_engine
        self._ranks = list(ranks)
        self._name = name
        self._description = "undefined"
        self._instance = engine.instance(name)
        self._nested: dict[str, Channel] = {}
        self._lock = threading.Lock()
        communicator = engine.communicator(self._instance, ranks, timeout.total_seconds())
        self._set_channel(Channel(self._instance, communicator), store)

    def _nested_channel(self, path: str) -> Channel:
        channel = self._nested.get(path)
        if channel is None:
            with self._lock:
                channel = self._nested.get(path)
                if channel is None:
                    name = f"{self._instance}|{path}"
                    timeout = self._channel.communicator.timeout()
                    communicator = self._engine.communicator(name, self._ranks, timeout)
                    channel = self._nested[path] = Channel(path, communicator)
        return channel

    def _communicators(self) -> list[Communicator]:
        """Return the group's communicator and those of its callbacks."""
        with self._lock:
            nested = [channel.communicator for channel in self._nested.values()]
        return [self._channel.communicator, *nested]

    def counters(self) -> dict[str, int]:
        """Return the counters of the engine that serves this group."""
        return self._engine.counters()

    def count_encoded(self, before: int, after: int) -> None:
        """Count bytes that were encoded outside of the engine, before and after."""
        self._engine.count_encoded(before, after)

    def limit_in_flight(self, bytes: int | None) -> None:
        """Keep the bytes on their way to each peer over TCP to about so many; `None`: no limit."""
        self._engine.limit_in_flight(bytes)

    def abort(self) -> None:
        """Make all operations of this group fail, here and on the other members."""
        for communicator in self._communicators():
            communicator.abort(f"aborted by rank {self._group_rank} of group {self._name!r}")
        if self._owns_engine:
            self._engine.close()

    def shutdown(self) -> None:
        """End the group, and the engine if it is the group's own."""
        if self._owns_engine:
            self._engine.close()

    def set_timeout(self, timeout: timedelta) -> None:
        """Set after what time operations started from now on fail."""
        for communicator in self._communicators():
            communicator.set_timeout(timeout.total_seconds())

    _set_default_timeout = set_timeout

    def eager_connect_single_device(self, device: torch.device | None) -> None:
        """Do nothing; connections are made on first use."""

    def _set_sequence_number_for_group(self) -> None:
        """Do nothing; the engine numbers operations itself."""

    def getBackendName(self) -> str:  # noqa: N802 - the name that C++ looks up
        """Return the backend's name."""
        return BACKEND_NAME

    def name(self) -> str:
        """Return the backend's name."""
        return BACKEND_NAME


class GradwireProcessGroup(_Group, ProcessGroup):  # type: ignore[misc]
    """A process group all of whose devices are served by gradwire."""

    def __init__(
        self,
        engine: SharedEngine,
        owns_engine: bool,
        name: str,
        ranks: Sequence[int],
        rank: int,
        store: Any,
        timeout: timedelta,
    ) -> None:
        # With a store, torch 2.8 makes an object that Python can not override.
        ProcessGroup.__init__(self, rank, len(ranks))
        self._open(engine, owns_engine, name, ranks, store, timeout)

    @property
    def _device_types(self) -> list[torch.device]:
        return _DEVICES if torch.cuda.is_available() else _DEVICES[:1]

    # A process group is its own backend; callers look for methods that both kinds have.
    def _get_backend(self, device: Any = None) -> Any:
        return self

    def get_backend(self, device: Any = None) -> Any:
        """Return this group, which serves all devices."""
        return self

    def _get_backend_name(self) -> str:
        return BACKEND_NAME

    def get_group_store(self) -> Any:
        """Return the group's rendezvous store."""
        return self._store

    def _add_ephemeral_timeout(self, timeout: timedelta) -> None:
        """Do nothing: an extension for one operation is not supported, as torch allows."""

    def _set_group_name(self, name: str) -> None:
        self._name = name

    def _set_group_desc(self, description: str) -> None:
        self._description = description

    def getGroupName(self) -> str:  # noqa: N802 - the name that C++ looks up
        """Return the group's name."""
        return self._name

    def getGroupDesc(self) -> str:  # noqa: N802 - the name that C++ looks up
        """Return the group's description."""
        return self._description

    setGroupName = _set_group_name  # noqa: N815 - the name that C++ looks up
    setGroupDesc = _set_group_desc  # noqa: N815 - the name that C++ looks up

    @property
    def group_name(self) -> Any:
        """The group's name."""
        return self._name

    @property
    def group_desc(self) -> str:
        """What the group is for, in the words of whoever made it."""
        return self._description

    def split_group(
        self,
        new_ranks: list[int],
        timeout: timedelta | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: list[torch.device] | None = None,
    ) -> GradwireProcessGroup | None:
        """Return a group of some of this group's ranks, `None` at ranks outside.

        Parameters
        ----------
        new_ranks
            Group ranks in this group, in the order of their ranks in the new one.
        timeout
            Until an operation of the new group fails; this group's if not given.
        opts, device_types
            Not used: all groups of an engine share its settings and devices.
        group_name, group_desc
            The new group's name, the same on all members, and its description.
        """
        if self._group_rank not in new_ranks:
            return None
        name = group_name or f"{self._name}/{'-'.join(map(str, new_ranks))}"
        if timeout is None:
            timeout = timedelta(seconds=self._channel.communicator.timeout())
        group = GradwireProcessGroup(
            self._engine,
            False,
            name,
            [self._ranks[rank] for rank in new_ranks],
            new_ranks.index(self._group_rank),
            PrefixStore(f"{name}/", self._store),
            timeout,
        )
        group._set_group_desc(group_desc or f"{self._description}:split")
        return group


class GradwireBackend(_Group, Backend):
    """gradwire for one device type of a mixed group such as `cpu:gradwire,cuda:nccl`.

    Needs a torch whose `Backend` can be subclassed in Python (2.14 and later).
    """

    supports_splitting = False

    def __init__(
        self,
        engine: SharedEngine,
        owns_engine: bool,
        name: str,
        ranks: Sequence[int],
        rank: int,
        store: Any,
        timeout: timedelta,
    ) -> None:
        Backend.__init__(self, rank, len(ranks))
        self._open(engine, owns_engine, name, ranks, store, timeout)
