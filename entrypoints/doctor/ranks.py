"""Real ranks in this container, started as a job's are, each bounded in time.

A rank says what it found in one line of standard output that begins with MARK: a container need not have a place
for files.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from entrypoints import rank
from entrypoints.launchers import LAUNCHERS, MARKS

MARK = "cpu-train-stack-doctor "
# What starts or steers ranks elsewhere: the doctor's own are alone in this container.
_OTHERS = re.compile(
    r"(PET|TORCHELASTIC|SLURM|FLUX|PMI|PMIX|PALS|OMPI|MPI|MV2|HYDRA|I_MPI|GLOO|ACCELERATE)_.*"
    r"|MASTER_(ADDR|PORT)|GROUP_.*|ROLE_.*|.*_RANK(ID)?"
)
_VARIABLES = {name for launcher in LAUNCHERS for name in (*launcher.variables, *launcher.marks)}
_VARIABLES |= {mark.variable for mark in MARKS}


@dataclass(frozen=True)
class Outcome:
    """What came of a command. `found`: its ranks' reports. `problem`: why it failed, empty where it did not."""

    found: tuple[dict[str, Any], ...]
    problem: str = ""


def environ(own: Mapping[str, str]) -> dict[str, str]:
    """`own` without any launcher's variables."""
    return {name: value for name, value in own.items() if name not in _VARIABLES and not _OTHERS.fullmatch(name)}


def start(argv: Sequence[str], seconds: float, more: Mapping[str, str] | None = None) -> Outcome:
    """Runs `entrypoint argv...` and ends all of it after `seconds`."""
    process = subprocess.Popen(
        rank.python("entrypoints", list(argv)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env={**environ(os.environ), **(more or {})},
        start_new_session=True,  # a group of its own, which can be killed whole
    )
    try:
        stdout, stderr = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        stdout, stderr = process.communicate()
        return Outcome(reports(stdout), f"not done within {seconds:g} s" + _last(stderr))
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    if process.returncode != 0:
        return Outcome(reports(stdout), f"exit code {process.returncode}" + _last(stderr))
    return Outcome(reports(stdout))


def reports(stdout: str) -> tuple[dict[str, Any], ...]:
    """The documents in the lines that begin with MARK."""
    marked = (line for line in stdout.splitlines() if line.startswith(MARK))
    return tuple(json.loads(line[len(MARK) :]) for line in marked)


def report(document: Mapping[str, Any]) -> None:
    """In a rank: say what was found. One write, so that lines of ranks do not run into each other."""
    sys.stdout.write(MARK + json.dumps(document) + "\n")
    sys.stdout.flush()


def _last(stderr: str) -> str:
    """The line that says most: our own error, else the last one."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    told = [line for line in lines if line.startswith("error: ")] or lines[-1:]
    return f": {told[0][:300]}" if told else ""
