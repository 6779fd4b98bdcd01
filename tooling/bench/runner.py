"""Starts the containers of a measurement and collects its report: one container, or a cluster."""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from invoke.exceptions import Exit

from cpu_train_stack import contract
from cpu_train_stack.cli.account import TMP
from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.files import parse_json
from cpu_train_stack.machine import cpus as machine_cpus
from tooling.basis.paths import CACHE, ROOT
from tooling.cluster import containers, result, users
from tooling.cluster import run as cluster
from tooling.cluster.compose import ClusterSpec
from tooling.cluster.nodes import detect_lost_engine
from tooling.cluster.spec import ContainerSpec, Mount, options
from tooling.engine import docker
from tooling.engine.api import Engine
from tooling.engine.client import connect

LOGS = CACHE / "logs"
# Where the container finds benchmarks/, the model and the data.
FOLDER = "/bench"
LIMIT_SECONDS = 1800.0
# oneDNN's variable, which hides instructions of the CPU from oneDNN and from this project's kernels.
INSTRUCTIONS = "ONEDNN_MAX_CPU_ISA"
# The exit code of `docker run` and `podman run` if the engine refuses.
REFUSED = 125

CpusOption = Annotated[str | None, "CPUs of the containers, such as 0-3,8; default: all"]


class RunError(Exception):
    """The reason why a run has no report, in one line. `code`: the exit code of the container, otherwise 1."""

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class Container:
    """How an image is run for a measurement. `image`: its ID.

    `cpus`: CPUs such as 0-3,8; None for all. `variables`: as in ContainerSpec.environment.
    """

    engine: Engine
    image: str
    cpus: str | None = None
    mounts: tuple[Mount, ...] = ()
    variables: Mapping[str, str | None] = field(default_factory=dict)

    def spec(self, command: Sequence[str]) -> ContainerSpec:
        """The container, with a user who can read the caller's files.

        taskset in the container chooses the CPUs: podman has no cpusets for users who are not root.
        """
        spec = ContainerSpec(
            image=self.image,
            user="{}:{}".format(*users.container_user()),
            group_add=tuple(users.container_groups()),
            environment={"HOME": TMP, **self.variables},
            volumes=self.mounts,
            cpuset=self.cpus or "",
            cap_drop=("ALL",),
            command=tuple(command),
        )
        with closing(connect(self.engine.endpoint)) as client:
            info = client.info()
        return containers.adapt(spec, {**info, "CPUSet": False}, self.engine.endpoint)

    def run(self, command: Sequence[str], limit_seconds: float) -> subprocess.CompletedProcess[bytes]:
        """Run the command, with its output in pipes.

        Raises subprocess.TimeoutExpired, and UsageError if the image was removed or the engine refuses.
        """
        spec = self.spec(command)
        done = docker.run(
            spec.image,
            spec.words,
            options(spec),
            subprocess.PIPE,
            subprocess.PIPE,
            limit_seconds,
            client=self.engine.client,
        )
        if done.returncode == REFUSED:
            with detect_lost_engine(self.engine.endpoint):
                docker.read_image_at(self.engine.endpoint, self.image)  # raises UsageError if it was removed
            why = reason(done.stderr.decode(errors="replace"))
            raise UsageError(f"bench: {self.engine.name} cannot start a container: {why}")
        return done


def container(
    engine: Engine, image: str, cpus: str | None = None, model: Path | None = None, data: Path | None = None
) -> Container:
    """A container with the scripts of benchmarks/, a model and data, and this process's value of INSTRUCTIONS."""
    folders = ((ROOT / "benchmarks", "benchmarks"), (model, "model"), (data, "data"))
    mounts = tuple(Mount(path, f"{FOLDER}/{name}") for path, name in folders if path)
    variables = {"PYTHONPATH": FOLDER, "HF_HUB_OFFLINE": "1", INSTRUCTIONS: None}
    return Container(engine, image, cpus, mounts, variables)


def parse_cpus(text: str | None, engine: Engine) -> tuple[int, ...]:
    """The CPUs of CpusOption in the engine, all by default. Raises UsageError for others than the engine has."""
    online = machine_cpus.online(Path("/")) if engine.endpoint.startswith("unix:") else frozenset()
    has = online or frozenset(range(engine.cpus))
    try:
        chosen = has if text is None else machine_cpus.parse_cpu_list(text)
    except ValueError:
        chosen = frozenset()
    if not chosen or chosen - has:
        raise UsageError(
            f"bench: --cpus is {text!r}, expected CPUs of {machine_cpus.format_cpu_list(has)}, such as 0-3,8"
        )
    return tuple(sorted(chosen))


def run(container: Container, command: Sequence[str], log: str) -> dict[str, Any]:
    """Run the command and return its report, the line of JSON that it prints.

    Raises UsageError if the engine refuses to start it, and RunError if it fails. Its output is then in
    .cache/logs/.
    """
    try:
        done = container.run(command, LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        raise RunError(f"did not end within {LIMIT_SECONDS:.0f} s") from None
    out, error = (text.decode(errors="replace") for text in (done.stdout, done.stderr))
    lines = [line for line in out.splitlines() if line.startswith('{"')]
    if done.returncode == 0 and len(lines) == 1:
        with suppress(ValueError):
            report: dict[str, Any] = parse_json(lines[0])
            return report
    LOGS.mkdir(parents=True, exist_ok=True)
    path = LOGS / f"bench-{log}.log"
    path.write_text(out + error, encoding="utf-8")
    if done.returncode == 0 and len(lines) > 1:  # without a process group, each process acts as rank 0
        raise RunError(f"{len(lines)} processes trained independently; see {path}")
    raise RunError(f"exit code {done.returncode}: {reason(error or out)}; see {path}", done.returncode or 1)


def run_cluster(spec: ClusterSpec, engine: Engine) -> dict[str, Any]:
    """Run a cluster whose command is the image's `bench`, and return the document that rank 0 wrote.

    Raises Exit with the cluster's exit code if it fails.
    """
    shared = cluster.writable_folder(output_of(spec.name))
    measured = replace(
        spec,
        command=(*spec.command, f"--output=/output/{result.NAME}"),
        mounts=(Mount(shared, contract.OUTPUT, read_only=False),),
        offline=True,
    )
    outcome = cluster.run(
        measured,
        engine,
        shown=sys.stderr.buffer,
        prepare=lambda: (shared / result.NAME).unlink(missing_ok=True),
    )
    if outcome.exit_code != 0:
        raise Exit(f"bench failed: the cluster ended with exit code {outcome.exit_code}", code=outcome.exit_code)
    return result.read(shared)


def output_of(name: str) -> Path:
    """The output folder of run_cluster()."""
    return cluster.folder_of(name) / "output"


def reason(output: str) -> str:
    """The line of a program's output that best explains a failure: its last error, or its last line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line or line.startswith("error")]
    causes = [line for line in errors if "ChildFailedError" not in line and "CalledProcessError" not in line]
    return next(iter(reversed(causes or errors or lines)), "no output")[:200]
