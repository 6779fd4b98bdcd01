"""One measurement in a container with the scripts of benchmarks/."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tooling.basis.errors import UsageError
from tooling.basis.paths import CACHE, ROOT
from tooling.engine import docker

LOGS = CACHE / "logs"
# Where the container finds benchmarks/, the model and the data.
FOLDER = "/bench"
LIMIT_SECONDS = 1800.0
# oneDNN's variable, which hides instructions of the CPU from oneDNN and from this project's kernels.
INSTRUCTIONS = "ONEDNN_MAX_CPU_ISA"
# The exit code of `docker run` if the engine refuses, for example because a CPU does not exist.
DOCKER_REFUSED = 125


class RunError(Exception):
    """The reason why a run has no report, in one line."""


def run(image: str, command: Sequence[str], docker_arguments: Sequence[str], log: str) -> dict[str, Any]:
    """Run the command and return its report, the line of JSON that it prints.

    Raises UsageError if Docker refuses to start it, and RunError if it fails. Its output is then in .cache/logs/.
    """
    try:
        done = docker.run(
            image, command, docker_arguments, subprocess.PIPE, subprocess.PIPE, limit_seconds=LIMIT_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise RunError(f"did not end within {LIMIT_SECONDS:.0f} s") from None
    if done.returncode == DOCKER_REFUSED:
        raise UsageError(f"bench: docker cannot start a container: {reason(done.stderr.decode(errors='replace'))}")
    out, error = (text.decode(errors="replace") for text in (done.stdout, done.stderr))
    lines = [line for line in out.splitlines() if line.startswith('{"')]
    if done.returncode == 0 and len(lines) == 1:
        report: dict[str, Any] = json.loads(lines[0])
        return report
    LOGS.mkdir(parents=True, exist_ok=True)
    path = LOGS / f"bench-{log}.log"
    path.write_text(out + error, encoding="utf-8")
    if done.returncode == 0 and len(lines) > 1:  # without a process group, each process acts as rank 0
        raise RunError(f"{len(lines)} processes trained independently; see {path}")
    raise RunError(f"exit code {done.returncode}: {reason(error or out)}; see {path}")


def reason(output: str) -> str:
    """The line of a program's output that best explains a failure: its last error, or its last line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line or line.startswith("error")]
    causes = [line for line in errors if "ChildFailedError" not in line and "CalledProcessError" not in line]
    return next(iter(reversed(causes or errors or lines)), "no output")[:200]


def arguments(cpus: str, model: Path | None, data: Path | None) -> tuple[str, ...]:
    """The arguments of `docker run` for a container on `cpus` with the scripts, the model and the data.

    The container gets this process's value of INSTRUCTIONS, if it is set.
    """
    mounts = [(ROOT / "benchmarks", "benchmarks"), (model, "model"), (data, "data")]
    variables = (f"PYTHONPATH={FOLDER}", "HF_HUB_OFFLINE=1", INSTRUCTIONS)
    words = ["--cpuset-cpus", cpus, *(word for variable in variables for word in ("--env", variable))]
    for path, name in mounts:
        words += ["--volume", f"{path}:{FOLDER}/{name}:ro"] if path else []
    return tuple(words)
