"""Runs inside the image: many command lines in one process, because imports take seconds.

Usage: many_runs.py FILE [RESULTS], with a JSON list of argument lists: flags of `train`, or `generate` or
`python` and their arguments. Prints a JSON list of {"code", "stderr", "stdout"}, or writes it to RESULTS. "stderr"
of `train` has its standard output, too. Words like NAME=VALUE before the flags set variables for this run and the
next ones. Also runs under `run` on several ranks, where a traceback is the end.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import re
import runpy
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from unittest import mock

import torch
from accelerate.state import AcceleratorState

from cpu_train_stack import catalogue
from cpu_train_stack.adapt.adaptation import Adaptation, Situation
from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.generate import command as generate
from cpu_train_stack.machine import cpus
from cpu_train_stack.placement.detect import DistributedEnvironment
from cpu_train_stack.rank import work
from cpu_train_stack.speed.padding import ANSWERS
from cpu_train_stack.train.main import prepare

RANK, RANKS = (int(os.environ.get(name, default)) for name, default in (("RANK", 0), ("WORLD_SIZE", 1)))
if "RANK" not in os.environ:  # `run` has done it
    # The operators of `train`, so that a run here and a run of that command have the same bits.
    work.install_operators(cpus.bf16_of(os.environ))

# A process of `train` installs its adaptations once. Those without padding change with each run.
INSTALLED: set[str] = set()
INSTALL = catalogue.install


def install_once(situation: Situation, off: frozenset[str], adaptations: Iterable[Adaptation]) -> None:
    new = [one for one in adaptations if one.name not in INSTALLED]
    INSTALL(situation, off, new)
    INSTALLED.update({one.name for one in new} - off - {"no-padding", ANSWERS})


mock.patch.object(catalogue, "install", install_once).start()


def announce(_quiet: bool) -> None:
    """Replaces the first lines of a job, because these runs have no process group."""
    print("a job begins", file=sys.stderr)


def start(argv: list[str]) -> int:
    """Returns the exit code."""
    if argv[:1] == ["python"]:
        sys.argv, sys.path[0] = argv[1:], str(Path(argv[1]).parent)
        runpy.run_path(argv[1], run_name="__main__")
        return 0
    job = generate.prepare(argv[1:]) if argv[:1] == ["generate"] else prepare(argv)
    return job.run(DistributedEnvironment(RANK, RANKS, RANK, RANKS), announce)


def run(argv: list[str]) -> dict[str, object]:
    """Runs one command line as a rank's worker would, in this process."""
    flags = list(itertools.dropwhile(lambda word: re.match(r"\w+=", word), argv))
    for word in argv[: len(argv) - len(flags)]:
        name, _, value = word.partition("=")
        os.environ[name] = value
    environment = dict(os.environ)
    stderr = io.StringIO()
    stdout = io.StringIO() if flags[:1] in (["generate"], ["python"]) else stderr
    with contextlib.redirect_stderr(stderr), contextlib.redirect_stdout(stdout):
        try:
            code = start(flags)
        except UsageError as error:
            print(f"error: {error}", file=sys.stderr)
            code = 2
        except SystemExit as error:
            code = int(error.code or 0)
        except Exception:  # noqa: BLE001 - a traceback is a finding, not the end of the list
            traceback.print_exc()
            code = 1
    if RANKS > 1:
        forget(environment)
    return {"code": code, "stderr": stderr.getvalue(), "stdout": stdout.getvalue()}


def forget(environment: dict[str, str]) -> None:
    """Resets the state that a run on several ranks leaves in its process."""
    os.environ.clear()
    os.environ.update(environment)
    torch.use_deterministic_algorithms(False)
    AcceleratorState._reset_state(reset_partial_state=True)


def run_all(lines: Iterable[list[str]], results: Path | None) -> None:
    """Runs all. On several ranks, a traceback is the end: the other ranks may wait for this one."""
    done = []
    for line in lines:
        done.append(run(line))
        if results and RANK == 0:
            results.write_text(json.dumps(done))
        if RANKS > 1 and done[-1]["code"] == 1:
            print(done[-1]["stderr"], file=sys.stderr)
            os._exit(1)
    if not results:
        json.dump(done, sys.stdout)


if __name__ == "__main__":
    run_all(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]) if sys.argv[2:] else None)
