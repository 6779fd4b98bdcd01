"""./inv doctor: what this machine has and lacks for building images and running clusters, and how to fix it.

The doctor installs and starts nothing. It contacts no registry, which only matters if a base image is missing.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from invoke.exceptions import Exit
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tooling.basis.paths import CACHE
from tooling.engine.decide import Plan, any_known, buildkit_is_enough, decide, lacking
from tooling.engine.find import Findings, find
from tooling.engine.host import Host, read_host

GIGABYTE = 1_000_000_000
DEMO_DISK = 6 * GIGABYTE  # image, build cache, wheels, containers and a model, of the default pin
DEMO_MEMORY = 4 * GIGABYTE  # two ranks that fine-tune a small encoder
DEFAULT_DOCKER_ROOT = "/var/lib/docker"


class Status(StrEnum):
    """`warning`: works, at a cost or after ./inv has installed something. `error`: does not work."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True)
class Check:
    name: str
    status: Status
    detail: str
    fix: str = ""


def check_system(host: Host, machine: str) -> Check:
    """The images run on any x86-64 Linux."""
    if machine not in ("x86_64", "AMD64"):
        return Check(
            "system",
            Status.ERROR,
            f"{host.name}, {machine}",
            "use an x86-64 machine: the images are built for x86-64",
        )
    return Check("system", Status.OK, f"{host.name}, {machine}{', root' if host.root else ''}")


def check_disk(name: str, path: Path, free: int, needed: int = DEMO_DISK) -> Check:
    """`free` and `needed` in bytes."""
    detail = f"{free / GIGABYTE:.0f} GB free at {path}"
    if free >= needed:
        return Check(name, Status.OK, detail)
    fix = f"free some space: the demo needs about {needed / GIGABYTE:.0f} GB"
    return Check(name, Status.ERROR if free < needed / 2 else Status.WARNING, detail, fix)


def check_memory(meminfo: str) -> Check:
    """`meminfo` is /proc/meminfo, in kB."""
    fields = dict(re.findall(r"^(\w+):\s+(\d+) kB", meminfo, re.MULTILINE))
    if "MemTotal" not in fields:
        return Check("memory", Status.WARNING, "unknown", "run ./inv doctor on Linux")
    total, available = (int(fields.get(key, 0)) * 1024 for key in ("MemTotal", "MemAvailable"))
    detail = f"{available / GIGABYTE:.0f} GB available of {total / GIGABYTE:.0f} GB"
    if available >= DEMO_MEMORY:
        return Check("memory", Status.OK, detail)
    return Check("memory", Status.WARNING, detail, f"the demo needs about {DEMO_MEMORY / GIGABYTE:.0f} GB")


def check_cpus(usable: int) -> Check:
    """`usable` by this process."""
    if usable >= 2:
        return Check("CPUs", Status.OK, f"{usable} usable")
    return Check("CPUs", Status.WARNING, f"{usable} usable", "two ranks will share a CPU: use two or more CPUs")


def check_bf16(cpuinfo: str) -> Check:
    """`cpuinfo` is /proc/cpuinfo: the flags of its first CPU show how bf16 is computed."""
    match = re.search(r"^flags\s*:(.*)$", cpuinfo, re.MULTILINE)
    flags = match[1].split() if match else []
    for flag in ("amx_bf16", "avx512_bf16"):
        if flag in flags:
            return Check("bf16", Status.OK, flag)
    return Check(
        "bf16",
        Status.WARNING,
        "no amx_bf16 or avx512_bf16: bf16 is emulated, slower than fp32",
        "train without --bf16 here, or on Intel since Cooper Lake or AMD since Zen 4",
    )


def check_docker(findings: Findings, host: Host) -> list[Check]:
    """Engine, BuildKit, client, compose, buildx and mmdebstrap, each with the fix of the plan for all."""
    plan = decide(findings, host)
    bad = Status.ERROR if plan.refusal else Status.WARNING
    fix = plan.refusal or _promise(plan)
    missing = lacking(findings)
    facts = findings.engine
    checks = []
    if facts:
        detail = f"{facts.version} at {findings.endpoint}, {facts.storage_driver}, cgroup v{facts.cgroup_version}"
        enough = buildkit_is_enough(findings.buildkit, facts.version)
        by = any_known(findings.buildkit) or f"Engine {facts.version} has {'>=' if enough else '<'} 0.12"
        checks += [
            Check("Docker Engine", Status.OK, detail),
            Check("BuildKit", Status.OK if enough else bad, by, "" if enough else fix),
        ]
    else:
        installed = findings.dockerd and f"installed, does not answer ({findings.problem})"
        elsewhere = findings.chosen_by and f"{findings.endpoint} does not answer ({findings.problem})"
        checks.append(Check("Docker Engine", bad, elsewhere or installed or "not found", fix))
    for name, key, version in (
        ("docker client", "the docker client", findings.client),
        ("compose", "compose v2", findings.compose),
        ("buildx", "buildx >= 0.8", findings.buildx),
    ):
        lacks = key in missing
        checks.append(Check(name, bad if lacks else Status.OK, version or "not found", fix if lacks else ""))
    if findings.mmdebstrap:
        checks.append(Check("mmdebstrap", Status.OK, findings.mmdebstrap))
    else:
        hint = "apt-get install mmdebstrap, which builds the base image when no registry answers"
        checks.append(Check("mmdebstrap", Status.WARNING, "not found", hint))
    return checks


def _promise(plan: Plan) -> str:
    does = [f"installs {', '.join(plan.packages)}"] if plan.packages else []
    does += ["starts Docker"] if plan.start else []
    return f"the first command that needs Docker {' and '.join(does)}" if does else ""


def check_git(path: str | None) -> Check:
    """The revision that is written into an image's labels comes from git."""
    if path:
        return Check("git", Status.OK, path)
    return Check("git", Status.WARNING, "not found", "install git: images are labelled with git's revision")


def examine() -> list[Check]:
    """All checks of this machine."""
    host, findings = read_host(), find()
    checks = [
        check_system(host, platform.machine()),
        Check("Python", Status.OK, f"{platform.python_version()}, {sys.executable}"),
        check_cpus(_usable_cpus()),
        check_memory(_read("/proc/meminfo")),
        check_bf16(_read("/proc/cpuinfo")),
    ]
    disks = {"disk for .cache": CACHE}
    if findings.endpoint.startswith("unix:"):  # an engine elsewhere has its disk elsewhere
        docker_root = findings.engine.root_dir if findings.engine else DEFAULT_DOCKER_ROOT
        disks["disk for Docker"] = Path(docker_root)
    for name, wanted in disks.items():
        path = next(place for place in (wanted, *wanted.parents) if place.is_dir())
        checks.append(check_disk(name, path, shutil.disk_usage(path).free))
    return [*checks, *check_docker(findings, host), check_git(shutil.which("git"))]


def _usable_cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def document(checks: Iterable[Check]) -> str:
    """The JSON of --json."""
    return json.dumps({"checks": [asdict(check) for check in checks]}, indent=2)


def table(checks: Sequence[Check]) -> Table:
    """One row a check."""
    colours = {Status.OK: "green", Status.WARNING: "yellow", Status.ERROR: "red"}
    shown = Table("check", "status", "detail", "fix")
    for check in checks:
        status = f"[{colours[check.status]}]{check.status.value}[/]"
        shown.add_row(check.name, status, escape(check.detail), escape(check.fix))
    return shown


def run(*, as_json: bool) -> None:
    """Prints the table or the JSON. Errors: Exit with 1 if a check is an error."""
    checks = examine()
    if as_json:
        print(document(checks))
    else:
        Console().print(table(checks))
    if any(check.status is Status.ERROR for check in checks):
        raise Exit(code=1)
