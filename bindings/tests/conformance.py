"""Run torch's own suite for backends with one backend, and list the outcome of each test.

    python conformance.py --backend ccl [--ranks 3] [--only PATTERN] >rows.json

Prints a JSON list of `test`, `status` (passed, failed, skipped), `reason` and `seconds`; progress goes to standard
error. A test fails if its ranks take longer than RANK_SECONDS. The tests fork their ranks from this process, so
torch is imported once.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import io
import json
import os
import re
import sys
import tempfile
import time
import types
import unittest
from pathlib import Path
from typing import Any

from transport import variables

RANK_SECONDS = 40


def prepare(backend: str, ranks: int) -> type[unittest.TestCase]:
    """The suite's test case for this backend. Importing the suite reads its settings."""
    os.environ["BACKEND"] = backend
    os.environ["WORLD_SIZE"] = str(ranks)
    os.environ["TEMP_DIR"] = tempfile.mkdtemp()
    if importlib.util.find_spec("expecttest") is None:
        # torch's helpers derive their test case from expecttest's; no test that runs here uses its additions.
        stand_in = types.ModuleType("expecttest")
        vars(stand_in).update(TestCase=unittest.TestCase, ACCEPT=False)
        sys.modules["expecttest"] = stand_in
    import torch

    torch.set_num_threads(1)
    from torch.testing._internal import common_distributed

    if backend == "ccl":
        importlib.import_module("oneccl_bindings_for_pytorch")  # registers the backend
        for feature in ("gpu", "cuda", "ddp", "subgroup", "plugin"):
            common_distributed.DistTestCases.backend_feature[feature].add(backend)
    common_distributed.TIMEOUT_DEFAULT = RANK_SECONDS
    suite = load_suite()
    suite.default_pg_timeout = RANK_SECONDS // 2
    for profiled in (suite.PROFILING_SUPPORTED_BACKENDS, suite.SEND_RECV_PROFILING_SUPPORTED_BACKENDS):
        if backend not in profiled:
            profiled.append(backend)

    test_case: Any = suite.TestDistBackend
    tests: Any = suite.DistributedTest._DistTestBase

    class Conformance(test_case, tests):
        def setUp(self) -> None:
            super().setUp()
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

        @classmethod
        def _run(cls, rank: int, *arguments: Any, **options: Any) -> None:
            for name, value in variables(rank, ranks).items():
                os.environ.setdefault(name, value)
            super()._run(rank, *arguments, **options)

    return Conformance


def load_suite() -> Any:
    """The suite, with ccl added to the tests that are restricted to gloo or MPI."""
    name = "torch.testing._internal.distributed.distributed_test"
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise ImportError(f"this torch has no {name}: install a torch that includes it")
    text = Path(spec.origin).read_text()
    text = text.replace('{"gloo"}', '{"gloo", "ccl"}')
    text = text.replace('BACKEND == "gloo"', 'BACKEND in ("gloo", "ccl")')
    text = text.replace('BACKEND != "gloo"', 'BACKEND not in ("gloo", "ccl")')
    text = text.replace('BACKEND != "mpi", "Only MPI', 'BACKEND not in ("mpi", "ccl"), "Only MPI')
    suite = importlib.util.module_from_spec(spec)
    sys.modules[name] = suite
    exec(compile(text, spec.origin, "exec", dont_inherit=True), suite.__dict__)  # noqa: S102  torch's own module
    return suite


def essence(traceback: str) -> str:
    """The exception of a traceback, without the suite's advice on how to run the test."""
    raised = [line for line in traceback.splitlines() if re.match(r"[\w.]*(Error|Exception): ", line)]
    return raised[-1] if raised else traceback.strip()[-1000:]


def run_one(case: type[unittest.TestCase], name: str) -> dict[str, Any]:
    begin = time.monotonic()
    result = unittest.TextTestRunner(stream=io.StringIO(), verbosity=0).run(unittest.TestSuite([case(name)]))
    status, reason = "passed", ""
    if result.skipped:
        status, reason = "skipped", result.skipped[0][1]
    elif result.failures or result.errors:
        status, reason = "failed", essence((result.failures + result.errors)[0][1])
    return {"test": name, "status": status, "reason": reason, "seconds": round(time.monotonic() - begin, 1)}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", required=True)
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--only", default="", help="run only tests whose name matches this regular expression")
    arguments = parser.parse_args()
    # The ranks inherit standard output: their output goes to standard error instead.
    document = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    case = prepare(arguments.backend, arguments.ranks)
    names = [name for name in unittest.defaultTestLoader.getTestCaseNames(case) if re.search(arguments.only, name)]
    rows = []
    for name in names:
        row = run_one(case, name)
        print(row["status"], name, row["seconds"], row["reason"][:200], file=sys.stderr, flush=True)
        rows.append(row)
    with document:
        json.dump(rows, document, indent=1)
    return 1 if any(row["status"] == "failed" for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
