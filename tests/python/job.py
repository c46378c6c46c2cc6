"""Jobs of several processes on this machine, for the tests."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import tempfile
import time
import traceback
from collections.abc import Callable, Collection
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import gradwire

# Ranks are forked from a server that has all of this imported, which takes seconds otherwise. Until
# Python 3.13 it finds modules in its environment's path alone, and leaves out those that it can't.
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
)
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    ["job", "pytest", "torch.distributed.fsdp", "torch.distributed.tensor"]
)

Function = Callable[..., Any]


def join(store: str, rank: int, size: int, seconds: float = 30.0, **settings: object) -> None:
    """Join a job through a file."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gradwire",
        init_method=f"file://{store}",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=seconds),
        pg_options=gradwire.options(**settings) if settings else None,
    )


def _rank_main(
    pipe: multiprocessing.connection.Connection,
    function: Function,
    store: str,
    rank: int,
    size: int,
    arguments: tuple[Any, ...],
    joins: bool,
) -> None:
    try:
        if joins:
            join(store, rank, size)
        result = function(*arguments) if joins else function(store, rank, size, *arguments)
        if dist.is_initialized():
            dist.destroy_process_group()
        pipe.send((True, result))
    except BaseException:
        pipe.send((False, traceback.format_exc()))
        raise


def run(
    function: Function,
    size: int,
    *arguments: Any,
    joins: bool = True,
    killed: Collection[int] = (),
    seconds: float = 60.0,
) -> list[Any]:
    """Call a function in each process of a job and return what it returned, by rank.

    Parameters
    ----------
    function
        Of a test module. Called with `arguments`, after the default group was made; if not
        `joins`, with (store, rank, size, *arguments) and no group.
    size
        The number of ranks.
    killed
        Ranks that end without an answer.
    seconds
        What the whole job may take.
    """
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder, "store"))
        pipes, processes = [], []
        for rank in range(size):
            reader, writer = _CONTEXT.Pipe(duplex=False)
            parameters = (writer, function, store, rank, size, arguments, joins)
            process = _CONTEXT.Process(target=_rank_main, args=parameters, daemon=True)
            process.start()
            writer.close()
            pipes.append(reader)
            processes.append(process)
        try:
            return _answers(pipes, killed, time.monotonic() + seconds)
        finally:
            for process in processes:
                process.join(5)
                process.kill()


def _answers(
    pipes: list[multiprocessing.connection.Connection], killed: Collection[int], deadline: float
) -> list[Any]:
    """Collect the ranks' answers; raise with the traces of those that failed."""
    answers: list[Any] = [None] * len(pipes)
    failures = []
    for rank, pipe in enumerate(pipes):
        if rank in killed:
            continue
        if not pipe.poll(max(0.0, deadline - time.monotonic())):
            failures.append(f"rank {rank} did not end in time")
            # Others may be waiting for a rank that has failed; its trace is what matters.
            deadline = time.monotonic() + 1
            continue
        try:
            succeeded, answer = pipe.recv()
        except EOFError:
            succeeded, answer = False, "the process has died"
        if succeeded:
            answers[rank] = answer
        else:
            failures.append(f"rank {rank}: {answer}")
    assert not failures, "\n".join(failures)
    return answers
