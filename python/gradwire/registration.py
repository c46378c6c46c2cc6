"""How torch finds gradwire, and what happens on `init_process_group` and `new_group`."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import Backend
from torch.distributed import distributed_c10d

from gradwire.engines import SharedEngine, default_engine, start_default_engine
from gradwire.process_group import BACKEND_NAME, GradwireBackend, GradwireProcessGroup


@dataclass(frozen=True)
class Options:
    """Settings of one process group, to be passed as `pg_options`.

    Attributes
    ----------
    timeout
        Until an operation fails, instead of the group's timeout.
    settings
        Overrides of `GRADWIRE_*` variables, by the lower-case rest of the variable's name. They
        hold for an engine, so they count where the default group is made.
    """

    timeout: timedelta | None = None
    settings: dict[str, str] = field(default_factory=dict)


def options(*, timeout: timedelta | None = None, **settings: object) -> Options:
    """Return settings for `init_process_group(..., pg_options=...)`.

    Every setting has a `GRADWIRE_*` environment variable; an argument here overrides it:
    `gradwire.options(algorithm="ring")` stands for `GRADWIRE_ALGORITHM=ring`. Lists are joined by
    commas and booleans become 1 and 0.

    Parameters
    ----------
    timeout
        Until an operation fails, instead of the group's timeout.
    **settings
        By the lower-case rest of the variable's name. Unknown names are refused when the engine
        starts.
    """
    return Options(timeout, {name: _as_text(value) for name, value in settings.items()})


def _as_text(value: object) -> str:
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value))
    return str(value)


def register() -> None:
    """Make `gradwire` known to `torch.distributed`; done when gradwire is imported."""
    if BACKEND_NAME.upper() in dist.Backend._plugins:
        return
    dist.Backend.register_backend(BACKEND_NAME, _create, extended_api=True, devices=["cpu", "cuda"])
    # torch's flight recorder can't hook a group that is a Python class, and fails on trying.
    self_recording: set[str] = getattr(distributed_c10d, "_FR_SELF_RECORDING_BACKENDS", set())
    self_recording.add(BACKEND_NAME)


def _create(described: Any, requested: Any) -> GradwireProcessGroup | GradwireBackend:
    """Make a process group, or one device's backend of a mixed one.

    Parameters
    ----------
    described
        torch's `DistributedBackendOptions`: who belongs to the group, and its store.
    requested
        What the caller passed as `pg_options`.
    """
    chosen = _options_of(requested)
    # `_new_process_group_helper` alone calls this, and nothing it passes tells a backend whether
    # it serves the whole group.
    mixed = _is_mixed(sys._getframe(1).f_locals.get("backend_config"))
    if mixed and not _backend_is_subclassable():
        raise RuntimeError(
            "a group of several backends (cpu:gradwire,cuda:...) needs torch 2.14 or later; "
            "with this torch use backend='gradwire' for all devices"
        )
    timeout = chosen.timeout or described.timeout
    engine, owns_engine, ranks = _engine_for(described, timeout, chosen)
    kind: type[GradwireBackend] | type[GradwireProcessGroup]
    kind = GradwireBackend if mixed else GradwireProcessGroup
    return kind(
        engine,
        owns_engine,
        described.group_id,
        ranks,
        described.group_rank,
        described.store,
        timeout,
    )


def _options_of(requested: Any) -> Options:
    """Return the caller's options; another backend's options say at most a timeout."""
    if requested is None:
        return Options()
    if isinstance(requested, Options):
        return requested
    raise TypeError(
        f"pg_options of a gradwire group must come from gradwire.options(...), got {requested!r}"
    )


def _is_mixed(configuration: Any) -> bool:
    """Return whether a group's devices are served by different backends."""
    return configuration is not None and len(set(configuration.device_backend_map.values())) > 1


def _backend_is_subclassable() -> bool:
    """Return whether `Backend` has a constructor that Python can call."""
    try:
        Backend(0, 1)
    except TypeError:
        return False
    return True


def _engine_for(
    described: Any, timeout: timedelta, chosen: Options
) -> tuple[SharedEngine, bool, list[int]]:
    """Return the engine for a group, whether the group owns it, and the members' engine ranks."""
    members = list(described.global_ranks_in_group)
    seconds = timeout.total_seconds()
    rank, size = described.group_rank, described.group_size
    if not members:
        engine = start_default_engine(described.store, rank, size, seconds, chosen.settings)
        return engine, True, list(range(size))
    shared = default_engine()
    if shared is not None:
        return shared, False, members
    engine = SharedEngine(described.store, rank, size, seconds, chosen.settings)
    return engine, True, list(range(size))
