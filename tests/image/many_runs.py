"""Runs inside the image: many `train` command lines in one process, because imports take seconds.

Usage: many_runs.py FILE, with a JSON list of argument lists. Prints a JSON list of {"code", "stderr"}. Words like
NAME=VALUE before the flags set variables for this run and the next ones.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import re
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from unittest import mock

import torch.distributed as dist

from cpu_train_stack.adapt import catalogue, no_padding
from cpu_train_stack.adapt.adaptation import Adaptation, Situation
from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.machine import cpus
from cpu_train_stack.placement import detect
from cpu_train_stack.rank import work
from cpu_train_stack.train.main import prepare

# One rank, or a rank of `run --no-adapt all`, which has a process group.
PLACE = detect.from_variables(os.environ, "torchrun") if dist.is_initialized() else detect.DistributedEnvironment()
# The operators of `train`, so that a run here and a run of that command have the same bits.
if not dist.is_initialized():
    work.install_operators(cpus.bf16_of(os.environ))

# A process of `train` installs its adaptations once. Those without padding change with each run.
INSTALLED: set[str] = set()
INSTALL = catalogue.install


def install_once(situation: Situation, off: frozenset[str], adaptations: Iterable[Adaptation]) -> None:
    new = [one for one in adaptations if one.name not in INSTALLED]
    INSTALL(situation, off, new)
    INSTALLED.update({one.name for one in new} - off - {one.name for one in no_padding.ADAPTATIONS})


mock.patch.object(catalogue, "install", install_once).start()


def announce(_quiet: bool) -> None:
    """Replaces the first lines of a job, because these runs have no process group."""
    print("a job begins", file=sys.stderr)


def run(argv: list[str]) -> dict[str, object]:
    """Runs one command line as a rank's worker would, in this process."""
    flags = list(itertools.dropwhile(lambda word: re.match(r"\w+=", word), argv))
    for word in argv[: len(argv) - len(flags)]:
        name, _, value = word.partition("=")
        os.environ[name] = value
    stderr = io.StringIO()
    with contextlib.redirect_stderr(stderr), contextlib.redirect_stdout(stderr):
        try:
            code = prepare(flags).run(PLACE, announce)
        except UsageError as error:
            print(f"error: {error}", file=sys.stderr)
            code = 2
        except SystemExit as error:
            code = int(error.code or 0)
        except Exception:  # noqa: BLE001 - a traceback is a finding, not the end of the list
            traceback.print_exc()
            code = 1
    return {"code": code, "stderr": stderr.getvalue()}


if __name__ == "__main__":
    json.dump([run(argv) for argv in json.loads(Path(sys.argv[1]).read_text())], sys.stdout)
