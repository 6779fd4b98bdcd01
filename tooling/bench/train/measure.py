"""One run of a recipe or of the ceiling in a container."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tooling.basis.errors import UsageError
from tooling.basis.paths import CACHE, ROOT
from tooling.bench.train.recipes import FOLDER
from tooling.engine import docker

LOGS = CACHE / "logs"
LIMIT_SECONDS = 1800.0
# The exit code of `docker run` where the engine refused, for CPUs that are not there for example.
DOCKERS_OWN = 125


class RunError(Exception):
    """Why a run says nothing, in one line."""


def run(image: str, command: Sequence[str], docker_arguments: Sequence[str], log: str) -> dict[str, Any]:
    """The one line of JSON that the command prints. Raises UsageError where docker refuses, otherwise RunError:
    the command's output is then in .cache/logs/."""
    try:
        done = docker.run(
            image, command, docker_arguments, subprocess.PIPE, subprocess.PIPE, limit_seconds=LIMIT_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise RunError(f"did not end within {LIMIT_SECONDS:.0f} s") from None
    if done.returncode == DOCKERS_OWN:
        raise UsageError(f"bench: docker cannot start a container: {reason(done.stderr.decode(errors='replace'))}")
    out, error = (text.decode(errors="replace") for text in (done.stdout, done.stderr))
    lines = [line for line in out.splitlines() if line.startswith('{"')]
    if done.returncode == 0 and len(lines) == 1:
        report: dict[str, Any] = json.loads(lines[0])
        return report
    LOGS.mkdir(parents=True, exist_ok=True)
    path = LOGS / f"bench-train-{log}.log"
    path.write_text(out + error, encoding="utf-8")
    if done.returncode == 0 and len(lines) > 1:  # every rank believes that it is the first
        raise RunError(f"{len(lines)} processes trained independently; see {path}")
    raise RunError(f"exit code {done.returncode}: {reason(error or out)}; see {path}")


def reason(output: str) -> str:
    """The line of a program's output that says most: its last error, or its last line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line or line.startswith("error")]
    told = [line for line in errors if "ChildFailedError" not in line and "CalledProcessError" not in line]
    return next(iter(reversed(told or errors or lines)), "no output")[:200]


def arguments(cpus: str, model: Path | None, data: Path | None) -> tuple[str, ...]:
    """docker's, for a container on these CPUs with the scripts and what they read."""
    mounts = [(ROOT / "benchmarks", "benchmarks"), (model, "model"), (data, "data")]
    words = ["--cpuset-cpus", cpus, "--env", f"PYTHONPATH={FOLDER}", "--env", "HF_HUB_OFFLINE=1"]
    for path, name in mounts:
        words += ["--volume", f"{path}:{FOLDER}/{name}:ro"] if path else []
    return tuple(words)
