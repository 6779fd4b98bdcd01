"""`./inv dev differential`: random collectives against gloo, and random operators against torch, in the image."""

from dataclasses import dataclass

from invoke.exceptions import Exit

from tooling.basis.errors import UsageError
from tooling.basis.paths import ROOT
from tooling.basis.say import say
from tooling.engine import api, docker
from tooling.image.choice import Choice

FOLDERS = {"/checks": ROOT / "bindings" / "tests", "/scripts": ROOT / "tests" / "image" / "scripts"}
TCP = {"CCL_ATL_SHM": "0", "FI_PROVIDER": "tcp"}
# Far more than a container needs to start and to end.
START_SECONDS = 120.0


@dataclass(frozen=True)
class Job:
    """A container that compares random cases. `share`: of the part's cases and seconds."""

    what: str
    command: tuple[str, ...]
    share: float
    environ: dict[str, str]


def _collectives(ranks: int, over: str, environ: dict[str, str]) -> Job:
    command = ("launch", f"--nproc-per-node={ranks}", "--", "run", "--backend", "ccl", "/checks/differential.py")
    return Job(f"{ranks} ranks over {over}", command, 0.25, environ)


PARTS = {
    "collectives": [
        _collectives(ranks, over, environ)
        for over, environ in (("shared memory", {}), ("TCP", TCP))
        for ranks in (2, 3)
    ],
    "operators": [Job("operators", ("run", "/scripts/differential_operators.py"), 1.0, {})],
}


def run(pin_name: str | None, part: str, cases: int, seed: int, seconds: float) -> None:
    """Compare `cases` cases of each part, or of the named `part`. Raises Exit with code 1 after a difference."""
    if part and part not in PARTS:
        raise UsageError(f"--part is {part!r}, expected one of: {', '.join(PARTS)}")
    if cases < 1 or seconds < 1:
        raise UsageError(f"--cases is {cases} and --seconds is {seconds:g}, expected 1 or more")
    _, image = Choice(pin_name, engine=api.DOCKER).ensure()
    different = []
    for job in PARTS[part] if part else [job for jobs in PARTS.values() for job in jobs]:
        limit = seconds * job.share
        options = (
            "--cases",
            f"{max(1, round(cases * job.share))}",
            "--seed",
            f"{seed}",
            "--seconds",
            f"{limit:g}",
        )
        environ = [f"--env={name}={value}" for name, value in job.environ.items()]
        volumes = [f"--volume={folder}:{path}:ro" for path, folder in FOLDERS.items()]
        done = docker.run(
            image.id, [*job.command, *options], [*environ, *volumes], limit_seconds=limit + START_SECONDS
        )
        if done.returncode != 0:
            different.append(job.what)
    if different:
        raise Exit(f"differences: {', '.join(different)}: the output above has the seed and the case", code=1)
    say("no difference")
