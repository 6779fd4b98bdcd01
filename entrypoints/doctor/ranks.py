"""Real ranks in this container, started like those of a job, with a time limit.

A rank reports its findings on one line of standard output that begins with MARK: the container may have no
writable folder.
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

from entrypoints.placement.launchers import LAUNCHERS, MARKS
from entrypoints.rank.start import python_command

MARK = "cpu-train-stack-doctor "
# Variables of an outer job: the doctor's own ranks are alone in this container.
_OUTER_JOB = re.compile(
    r"(PET|TORCHELASTIC|SLURM|FLUX|PMI|PMIX|PALS|OMPI|MPI|MV2|HYDRA|I_MPI|GLOO|ACCELERATE)_.*"
    r"|MASTER_(ADDR|PORT)|GROUP_.*|ROLE_.*|.*_RANK(ID)?"
)
_VARIABLES = {name for launcher in LAUNCHERS for name in (*launcher.variables, *launcher.marks)}
_VARIABLES |= {mark.variable for mark in MARKS}


@dataclass(frozen=True)
class Outcome:
    """The result of a command. `found`: its ranks' reports. `problem`: why the command failed, or empty."""

    found: tuple[dict[str, Any], ...]
    problem: str = ""


def environ(own: Mapping[str, str]) -> dict[str, str]:
    """`own` without any launcher's variables."""
    return {name: own[name] for name in own if name not in _VARIABLES and not _OUTER_JOB.fullmatch(name)}


def start(argv: Sequence[str], seconds: float, more: Mapping[str, str] | None = None) -> Outcome:
    """Run `entrypoint argv...`; kill all its processes after `seconds`."""
    process = subprocess.Popen(
        python_command("entrypoints", list(argv)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env={**environ(os.environ), **(more or {})},
        start_new_session=True,  # so that killpg reaches every process
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
    """In a rank: report the findings. A single write keeps lines of several ranks apart."""
    sys.stdout.write(MARK + json.dumps(document) + "\n")
    sys.stdout.flush()


def _last(stderr: str) -> str:
    """The most useful line: this package's own error, else the last line."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    useful = [line for line in lines if line.startswith("error: ")] or lines[-1:]
    return f": {useful[0][:300]}" if useful else ""
