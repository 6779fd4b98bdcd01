"""`./inv soak`: many short jobs one after another on fresh clusters. Not one may fail."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from invoke.exceptions import Exit

from tooling import cluster, engine, images, pins
from tooling.compose import ClusterSpec, Mount
from tooling.conformance import CHECKS
from tooling.errors import UsageError
from tooling.paths import CACHE, ROOT

FOLDER = CACHE / "soak"
NAME = "soak"

Say = Callable[[str], None]


@dataclass(frozen=True)
class Job:
    """One job. `seconds` from the first container's start to the last one's end; `log` only of a failed one."""

    number: int
    exit_code: int
    right: bool
    seconds: float
    log: str | None

    @property
    def failed(self) -> bool:
        return self.exit_code != 0 or not self.right


def run(pin_name: str | None, jobs: int, node_count: int, ranks_per_node: int, backend: str, say: Say) -> None:
    """Runs `jobs` jobs and writes .cache/soak/result.json. Raises Exit 1 if one failed; its log is beside that."""
    if jobs < 1:
        raise UsageError(f"--jobs is {jobs}, expected 1 or more")
    pin = pins.load().pin(pin_name)
    spec = ClusterSpec(
        name=NAME,
        image=pin.image,
        nodes=node_count,
        ranks_per_node=ranks_per_node,
        command=("run", f"--backend={backend}", "/checks/collectives.py", f"--backend={backend}"),
        mounts=(Mount(CHECKS, "/checks"),),
        offline=True,
    )
    docker = engine.ensure(say)
    image = images.build(pin, say)
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    done: list[Job] = []
    for number in range(1, jobs + 1):
        job = run_one(spec, docker, number, say)
        say(f"job {number} of {jobs}: {'failed' if job.failed else 'right'}, {job.seconds:.1f} s")
        done.append(job)
        document = {"image": image.id, "backend": backend, "nodes": node_count, "ranks_per_node": ranks_per_node}
        text = json.dumps({**document, "jobs": [asdict(job) for job in done]}, indent=1)
        (FOLDER / "result.json").write_text(text + "\n", encoding="utf-8")
    failed = [job for job in done if job.failed]
    median = statistics.median(job.seconds for job in done)
    what = f"{jobs} jobs of {node_count * ranks_per_node} ranks on {node_count} nodes, {backend}"
    print(f"{what}: {len(failed)} failed, median {median:.1f} s")
    if failed:
        raise Exit("failed: " + ", ".join(f"job {job.number}, see {job.log}" for job in failed), code=1)


def run_one(spec: ClusterSpec, docker: engine.Engine, number: int, say: Say) -> Job:
    """One cluster from its start to its end. It is right if rank 0 says that every result is."""
    started = time.monotonic()
    with Path(os.devnull).open("wb") as nowhere:
        outcome = cluster.run(spec, docker, say, shown=nowhere)
    seconds = round(time.monotonic() - started, 2)
    log = cluster.folder_of(spec.name) / "log.txt"
    right = f"results of {spec.nodes * spec.ranks_per_node} ranks are right" in log.read_text(errors="replace")
    job = Job(number, outcome.exit_code, right, seconds, log=None)
    if not job.failed:
        return job
    kept = shutil.copy(log, FOLDER / f"job-{number}.log")
    return Job(number, outcome.exit_code, right, seconds, str(Path(kept).relative_to(ROOT)))
