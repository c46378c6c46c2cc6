"""The demo's text: the Python standard library that is on the machine.

Source, docstrings and the language reference that ``pydoc`` ships (``pydoc_data/topics.py``) are
real text that every machine with Python has, so the demo downloads nothing. Tokens are bytes.
"""

from __future__ import annotations

import sysconfig
from dataclasses import dataclass
from pathlib import Path

SKIPPED_DIRECTORIES = frozenset(
    {
        "__pycache__",
        "dist-packages",
        "encodings",  # character tables, not prose or code
        "idle_test",
        "site-packages",
        "test",
        "tests",
    }
)
HELD_OUT_EVERY = 16
SMALLEST_TEXT = 1 << 20


class TextError(Exception):
    """The standard library's source is missing or too small to train on."""


@dataclass(frozen=True)
class Corpus:
    """Bytes to train on, and bytes kept back to judge the model by.

    Attributes
    ----------
    train, held_out
        Whole files joined in path order. No file is in both.
    files
        Number of files read.
    """

    train: bytes
    held_out: bytes
    files: int


def standard_library() -> Path:
    """Return the directory of the running interpreter's standard library."""
    return Path(sysconfig.get_paths()["stdlib"])


def source_files(root: Path) -> list[Path]:
    """List the Python files under `root` in path order, tests and packages left out."""
    return sorted(
        path
        for path in root.rglob("*.py")
        if path.is_file() and SKIPPED_DIRECTORIES.isdisjoint(path.relative_to(root).parts)
    )


def collect(root: Path, smallest: int = SMALLEST_TEXT) -> Corpus:
    """Read the text under `root` and split it by file.

    Every sixteenth file of the sorted list is held out, so the same interpreter always gives the
    same split, and held-out text comes from all over the library.

    Parameters
    ----------
    root
        Directory to read.
    smallest
        Fewest training bytes that will do.

    Raises
    ------
    TextError
        Fewer than `smallest` bytes were found.
    """
    files = source_files(root)
    train, held_out = bytearray(), bytearray()
    for index, path in enumerate(files):
        part = held_out if index % HELD_OUT_EVERY == HELD_OUT_EVERY - 1 else train
        part += path.read_bytes()
    if len(train) < smallest or not held_out:
        raise TextError(
            f"{root} holds {len(train)} bytes of Python source to train on, the demo needs"
            f" {smallest}: use a Python whose standard library is installed as source files"
        )
    return Corpus(bytes(train), bytes(held_out), len(files))


def write(corpus: Corpus, directory: Path) -> None:
    """Write the two parts where :mod:`train` reads them, as ``train.bin`` and ``held_out.bin``."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "train.bin").write_bytes(corpus.train)
    (directory / "held_out.bin").write_bytes(corpus.held_out)
