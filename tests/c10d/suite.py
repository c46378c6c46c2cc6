"""PyTorch's `DistributedTest` for the backend that `BACKEND` names, one test at a time.

Run by `run.py`: reads test names from standard input, one a line, and answers each with one
line of JSON: `name`, `outcome` (`passed`, `failed`, `skipped`), `seconds` and `detail`.

The ranks of a test are forked from a server that has this module imported already; with PyTorch's
own start method every rank would import torch again, several seconds of processor time a test.
"""

from __future__ import annotations

import json
import os
import sys
import time
import unittest
from typing import Any
from unittest import mock

import torch.multiprocessing
from torch.testing._internal.common_distributed import DistTestCases


class TestedBackend(str):
    """A backend's name that also answers to `gloo` when it is compared.

    The suite decides by `BACKEND == "gloo"` which tests apply. gradwire claims all that Gloo can
    do, so a test must not be skipped because of the name alone.
    """

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other) is True or other == "gloo"

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash("gloo")  # So that it is found in sets of names where Gloo is.


def _prepare(backend: str) -> str:
    """Import `backend` and return the name that the suite shall know it by."""
    if backend == "gloo":
        return backend
    __import__(backend)
    # Makes `require_backend_is_available` accept a backend that torch does not ship.
    DistTestCases.backend_feature["plugin"].add(backend)
    return TestedBackend(backend)


def _load_suite(backend: str) -> type:
    """Import the suite with `BACKEND` bound to `backend`, which no environment can hold."""
    with mock.patch.object(os, "environ", {**os.environ, "BACKEND": backend}):
        from torch.testing._internal.distributed import distributed_test
    return distributed_test  # type: ignore[return-value]


_suite = _load_suite(_prepare(os.environ["BACKEND"]))


def _run_rank(environment: dict[str, str], target, args) -> None:  # type: ignore[no-untyped-def]
    """Run one rank in a forked process, with the environment of the test and not the server's."""
    os.environ.update(environment)
    _suite.INIT_METHOD = environment["INIT_METHOD"]
    target(*args)


class TestBackend(_suite.TestDistBackend, _suite.DistributedTest._DistTestBase):  # type: ignore
    """Every test of `DistributedTest`, in freshly forked ranks."""

    def setUp(self) -> None:
        super().setUp()
        context = torch.multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["suite"])
        environment = {name: os.environ[name] for name in ("TEMP_DIR", "INIT_METHOD")}

        def process(*, target, name, args, kwargs):  # type: ignore[no-untyped-def]
            return context.Process(target=_run_rank, name=name, args=(environment, target, args))

        self._start_processes(process)


class _Outcome(unittest.TestResult):
    """Keeps how the one test that was run ended."""

    outcome = "passed"
    detail = ""

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:  # noqa: N802
        self.outcome, self.detail = "skipped", reason

    def addError(self, test: Any, err: Any) -> None:  # noqa: N802
        self.outcome, self.detail = "failed", self._exc_info_to_string(err, test)

    addFailure = addError  # noqa: N815


def run_test(name: str) -> dict[str, object]:
    """Run one test of the suite and describe its end."""
    result = _Outcome()
    started = time.monotonic()
    TestBackend(name).run(result)
    return {
        "name": name,
        "outcome": result.outcome,
        "seconds": round(time.monotonic() - started, 2),
        "detail": result.detail[-4000:],
    }


def main() -> None:
    """Serve the tests named on standard input."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # What the tests print belongs to the log, not among the answers.
    import suite  # Under its own name, so that the forked ranks find the same classes.

    for line in sys.stdin:
        print(json.dumps(suite.run_test(line.strip())), file=answers, flush=True)


if __name__ == "__main__":
    main()
