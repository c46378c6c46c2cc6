"""What the README says is what there is."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

BETWEEN_PROCESSES = {"GRADWIRE_BENCH_STORE"}
"""Set by gradwire for processes that it starts, and by nobody else."""


def variables_in_code() -> set[str]:
    """Return the variables that are read or set by name, and those of the engine's settings."""
    sources = [*ROOT.glob("crates/*/src/**/*.rs")]
    for folder in ("python", "demo", "bench", "convergence"):
        sources += ROOT.glob(f"{folder}/**/*.py")
    text = "\n".join(source.read_text() for source in sources)
    settings = re.search(
        r"const SETTINGS.*?= &\[(.*?)\n\];",
        (ROOT / "crates/gradwire/src/config.rs").read_text(),
        re.DOTALL,
    )
    assert settings is not None
    names = re.findall(r'^    \("(\w+)"', settings[1], re.MULTILINE)
    assert "shm_bytes" in names
    return {f"GRADWIRE_{name.upper()}" for name in names} | {
        *re.findall(r'"(GRADWIRE_[A-Z_]+)"', text)
    }


def test_every_variable_is_in_the_table() -> None:
    rows = re.findall(r"^\| `(GRADWIRE_\w+)` \|", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert len(rows) == len(set(rows))
    assert set(rows) == variables_in_code() - BETWEEN_PROCESSES
