"""`./inv dev differential`: random collectives against gloo, and random operators against torch, in the image."""

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from invoke.exceptions import Exit

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.numbers import check_at_least
from cpu_train_stack.cli.say import say
from tooling.basis.paths import ROOT
from tooling.checks import modelled
from tooling.engine import api, docker
from tooling.image.choice import Choice

FOLDERS = {"/checks": ROOT / "bindings" / "tests", "/scripts": ROOT / "tests" / "image" / "scripts"}
TCP = {"CCL_ATL_SHM": "0", "FI_PROVIDER": "tcp"}
# Far more than a container needs to start and to end.
START_SECONDS = 120.0


@dataclass(frozen=True)
class DifferentialRun:
    """A container that compares random cases. `share`: of the part's cases and seconds."""

    what: str
    command: tuple[str, ...]
    share: float
    environ: dict[str, str]


def _collectives(ranks: int, over: str, environ: dict[str, str]) -> DifferentialRun:
    command = ("launch", f"--nproc-per-node={ranks}", "--", "run", "--backend", "ccl", "/checks/differential.py")
    return DifferentialRun(f"{ranks} ranks over {over}", command, 0.25, environ)


OPERATORS = "operators"
PARTS = {
    "collectives": [
        _collectives(ranks, over, environ)
        for over, environ in (("shared memory", {}), ("TCP", TCP))
        for ranks in (2, 3)
    ],
    OPERATORS: [DifferentialRun("operators", ("run", "/scripts/differential_operators.py"), 1.0, {})],
}


def run(pin_name: str | None, part: str, cases: int, seed: int, seconds: float) -> None:
    """Compare `cases` cases of each part, or of the named `part`. Raises Exit with code 1 after a difference."""
    if part and part not in PARTS:
        raise UsageError(f"--part is {part!r}, expected one of: {', '.join(PARTS)}")
    check_at_least("--cases", cases, 1)
    check_at_least("--seconds", seconds, 1)
    _, image = Choice(pin_name, engine=api.DOCKER).ensure()
    with tempfile.TemporaryDirectory() as folder:
        different = [
            job.what
            for name in ([part] if part else PARTS)
            for job in PARTS[name]
            if _differs(job, image.id, cases, seed, seconds, _instructions(name, Path(folder)))
        ]
    if different:
        raise Exit(f"differences: {', '.join(different)}: the output above has the seed and the case", code=1)
    say("no difference")


def _instructions(part: str, folder: Path) -> tuple[str, ...]:
    """Docker's arguments with which the operators' kernels run on a CPU that lacks AVX-512."""
    if part != OPERATORS or not modelled.lacks_avx512():
        return ()
    library = modelled.compiled(folder, f"cpu-train-stack-compiler:{os.getpid()}", amx=False)
    return (*modelled.mounts(library, amx=False), "--env=ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16")


def _differs(
    job: DifferentialRun, image: str, cases: int, seed: int, seconds: float, docker_arguments: tuple[str, ...]
) -> bool:
    limit = seconds * job.share
    options = (f"--cases={max(1, round(cases * job.share))}", f"--seed={seed}", f"--seconds={limit:g}")
    environ = [f"--env={name}={value}" for name, value in job.environ.items()]
    volumes = [f"--volume={folder}:{path}:ro" for path, folder in FOLDERS.items()]
    arguments = [*environ, *volumes, *docker_arguments]
    return (
        docker.run(image, [*job.command, *options], arguments, limit_seconds=limit + START_SECONDS).returncode != 0
    )
