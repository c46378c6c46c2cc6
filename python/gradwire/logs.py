"""What `GRADWIRE_LOG` means for Python's side: the `gradwire` logger.

The engine's logs obey the same variable. Logging that the program has set up is respected: a level
that it gave the logger stays, and where it has handlers, they alone write.
"""

from __future__ import annotations

import logging
import os

_LEVELS = {
    "off": logging.CRITICAL + 1,
    "error": logging.ERROR,
    "warn": logging.WARNING,
    "info": logging.INFO,
    "debug": logging.DEBUG,
    "trace": logging.DEBUG,
}

_NAMES = ("", "gradwire")
"""Targets of a filter that are Python's too; others are parts of the engine."""


class _OwnHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to standard error, unless the program handles logs, now or by the time of a record."""

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers:
            super().emit(record)


def level_of(filter: str) -> int | None:
    """Return the level that a filter such as `info` or `warn,gradwire=debug` has for Python.

    `None` if it says nothing about that. The most specific part counts, as for the engine.
    """
    levels = {}
    for part in filter.split(","):
        target, _, level = part.strip().rpartition("=")
        if target in _NAMES and level.lower() in _LEVELS:
            levels[target] = _LEVELS[level.lower()]
    return levels.get("gradwire", levels.get(""))


def start_logging() -> None:
    """Let `GRADWIRE_LOG` govern the `gradwire` logger; without it Python's defaults hold."""
    level = level_of(os.environ.get("GRADWIRE_LOG", ""))
    logger = logging.getLogger("gradwire")
    if level is None or logger.level != logging.NOTSET:
        return
    logger.setLevel(level)
    if not logger.handlers:
        handler = _OwnHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)5s %(name)s: %(message)s"))
        logger.addHandler(handler)
