"""Starts the ranks of one training run, in the lab or over loopback, and ends them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO

GRACE_S = 8.0  # what a process gets to end by itself, and its peers to notice that it is gone
LOOPBACK = "127.0.0.1"
RANK_ENVIRONMENT = {
    # One thread a rank: the ranks already are more than the processors.
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
    # Freed memory is kept for the next step, as CUDA's allocator does. Left to itself glibc hands
    # activations back to the kernel, which clears the pages anew in some steps and not in others.
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(16 << 30),
}
LAB_SAYS = "gradwire lab: "


@dataclass(frozen=True)
class Launch:
    """A process to start.

    Attributes
    ----------
    name
        What to call it in messages.
    command
        Program and arguments.
    environment
        Variables to add to the environment of this process.
    stop_signal
        What it is asked to end with.
    """

    name: str
    command: list[str]
    environment: dict[str, str]
    stop_signal: signal.Signals


def in_lab(gradwire: Path, hosts: int, rate: str, program: Sequence[str]) -> list[Launch]:
    """One host in a network namespace of its own for each rank; ``gradwire lab`` starts them."""
    arguments = ["lab", "run", "--hosts", str(hosts), "--rate", rate, "--", *program]
    return [Launch("gradwire lab", [str(gradwire), *arguments], {}, signal.SIGINT)]


def over_loopback(hosts: int, program: Sequence[str]) -> list[Launch]:
    """All ranks side by side on this host, in the environment that torchrun would give them."""
    port = _free_port()
    return [
        Launch(
            f"rank {rank}",
            list(program),
            {
                "RANK": str(rank),
                "WORLD_SIZE": str(hosts),
                "LOCAL_RANK": str(rank),
                "LOCAL_WORLD_SIZE": str(hosts),
                "GROUP_RANK": "0",
                "MASTER_ADDR": LOOPBACK,
                "MASTER_PORT": str(port),
            },
            # Not SIGINT: Python would only see it once the collective it waits in has ended.
            signal.SIGTERM,
        )
        for rank in range(hosts)
    ]


class Job:
    """The running processes of a training run; leaving its context ends all of them.

    Each process is the leader of a process group of its own, so Ctrl-C reaches the demo alone,
    which then ends its processes in order.

    Parameters
    ----------
    launches
        What to start.
    output
        File that takes what the processes print; kept as an attribute.
    """

    def __init__(self, launches: Sequence[Launch], output: Path) -> None:
        self._launches, self.output = launches, output
        self._processes: list[subprocess.Popen[bytes]] = []
        self._failed_at: float | None = None
        self._file: IO[bytes] | None = None

    def __enter__(self) -> Job:
        self._file = self.output.open("wb")
        try:
            for launch in self._launches:
                process = subprocess.Popen(
                    launch.command,
                    env={**os.environ, **RANK_ENVIRONMENT, **launch.environment},
                    stdin=subprocess.DEVNULL,
                    stdout=self._file,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
                self._processes.append(process)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def running(self) -> bool:
        """Whether to go on waiting: all have yet to end, or one failed less than a grace ago."""
        codes = [process.poll() for process in self._processes]
        if all(code is not None for code in codes):
            return False
        if not any(codes):
            return True
        now = time.monotonic()
        self._failed_at = self._failed_at or now
        return now - self._failed_at < GRACE_S

    def failures(self) -> list[str]:
        """Say how each process that ended badly ended, and what the lab said about its ranks."""
        processes = [
            f"{launch.name} {_ending(process.returncode)}"
            for launch, process in zip(self._launches, self._processes, strict=True)
            if process.returncode
        ]
        printed = self.output.read_text(encoding="utf-8", errors="replace").splitlines()
        return processes + [
            line.removeprefix(LAB_SAYS) for line in printed if line.startswith(f"{LAB_SAYS}rank ")
        ]

    def _end(self) -> None:
        for launch, process in zip(self._launches, self._processes, strict=False):
            if process.poll() is None:
                process.send_signal(launch.stop_signal)
        _wait(self._processes, GRACE_S)
        for process in self._processes:
            _kill_group(process.pid)
            process.wait()
        if self._file is not None:
            self._file.close()


def _kill_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return  # nobody is left in it


def _wait(processes: Sequence[subprocess.Popen[bytes]], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and any(process.poll() is None for process in processes):
        time.sleep(0.05)


def _ending(code: int) -> str:
    if code >= 0:
        return f"exited with status {code}"
    return f"was ended by {signal.Signals(-code).name}"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port
