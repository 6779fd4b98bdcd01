"""`./inv dev soak`: many short jobs, one after another, each on a new cluster. None of them may fail."""

import json
import os
import shutil
import statistics
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

from invoke.exceptions import Exit

from cpu_train_stack.cli.numbers import check_at_least
from cpu_train_stack.cli.say import say
from tooling.basis.paths import CACHE, shown
from tooling.checks.conformance import CHECKS
from tooling.cluster import leftovers
from tooling.cluster import run as cluster
from tooling.cluster.compose import (
    ClusterSpec,
    LauncherOption,
    NodesOption,
    RanksPerNodeOption,
    check_backend,
)
from tooling.cluster.spec import Mount
from tooling.engine import api
from tooling.engine.api import Engine
from tooling.image.choice import Choice

FOLDER = CACHE / "soak"
NAME = "soak"


@dataclass(frozen=True)
class SoakJob:
    """One job. `seconds`: from the start of the first container to the end of the last. `log`: of a failed job.

    `right`: every result was right. `left`: leftovers of its cluster.
    """

    number: int
    exit_code: int
    right: bool
    seconds: float
    left: tuple[str, ...]
    log: str | None = None

    @property
    def failed(self) -> bool:
        return self.exit_code != 0 or not self.right or bool(self.left)


@dataclass(frozen=True)
class SoakShape:
    """The cluster of each job."""

    nodes: NodesOption = 2
    ranks_per_node: RanksPerNodeOption = 1
    backend: Annotated[str, "the process group: ccl or gloo"] = "ccl"
    launcher: LauncherOption = "torchrun"

    def __post_init__(self) -> None:
        check_backend(self.backend)


def run(pin_name: str | None, jobs: int, shape: SoakShape) -> None:
    """Run the jobs, and write .cache/soak/result.json and logs of failed jobs. Raises Exit 1 if a job fails."""
    check_at_least("--jobs", jobs, 1)
    choice = Choice(pin_name, engine=api.DOCKER)
    spec = ClusterSpec(
        name=NAME,
        image=choice.reference,
        nodes=shape.nodes,
        ranks_per_node=shape.ranks_per_node,
        command=("run", f"--backend={shape.backend}", "/checks/collectives.py", f"--backend={shape.backend}"),
        mounts=(Mount(CHECKS, "/checks"),),
        offline=True,
        launcher=shape.launcher,
    )
    docker, image = choice.ensure()
    spec = replace(spec, image=image.id)  # a build may move the tag
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    done: list[SoakJob] = []
    for number in range(1, jobs + 1):
        job = run_one(spec, docker, number)
        say(f"job {number} of {jobs}: {describe(job)}, {job.seconds:.1f} s")
        done.append(job)
        document = {"image": image.id, **asdict(shape), "jobs": [asdict(job) for job in done]}
        text = json.dumps(document, indent=1)
        (FOLDER / "result.json").write_text(text + "\n", encoding="utf-8")
    failed = [job for job in done if job.failed]
    median = statistics.median(job.seconds for job in done)
    ranks = shape.nodes * shape.ranks_per_node
    leaks = sum(bool(job.left) for job in done)
    print(
        f"{jobs} jobs of {ranks} ranks on {shape.nodes} nodes, {shape.backend}, {shape.launcher}: "
        f"{len(failed)} failed, {leaks} had leftovers, median {median:.1f} s"
    )
    if failed:
        raise Exit("failed: " + ", ".join(f"job {job.number}, see {job.log}" for job in failed), code=1)


def describe(job: SoakJob) -> str:
    """The outcome of a job, in words."""
    problems = [f"left {', '.join(job.left)}"] if job.left else []
    if job.exit_code != 0 or not job.right:
        problems.insert(0, f"failed with exit code {job.exit_code}")
    return ", ".join(problems) or "right, no leftovers"


def run_one(spec: ClusterSpec, docker: Engine, number: int) -> SoakJob:
    """Run one cluster. The job is right if rank 0 reports that every result is right."""
    started = time.monotonic()
    with Path(os.devnull).open("wb") as nowhere:
        outcome = cluster.run(spec, docker, shown=nowhere)
    seconds = round(time.monotonic() - started, 2)
    log = cluster.folder_of(spec.name) / "log.txt"
    right = f"results of {spec.nodes * spec.ranks_per_node} ranks are right" in log.read_text(errors="replace")
    job = SoakJob(number, outcome.exit_code, right, seconds, leftovers.of(spec.name))
    if not job.failed:
        return job
    kept = shutil.copy(log, FOLDER / f"job-{number}.log")
    return replace(job, log=str(shown(Path(kept))))
