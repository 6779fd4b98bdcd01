"""`./inv doctor`: checks this machine for building images and running clusters, and names a fix for each problem.

The doctor installs and starts nothing, and contacts no registry.
"""

import os
import platform
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from invoke.exceptions import Exit
from rich.markup import escape
from rich.table import Table

from cpu_train_stack.cli import errors, files
from cpu_train_stack.cli.checks import Check, CheckStatus, document
from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.files import write_output
from cpu_train_stack.machine import cpus, topology
from cpu_train_stack.page import checks as page
from cpu_train_stack.page import render
from cpu_train_stack.page.blocks import Drawing
from cpu_train_stack.plan import command as plan_command
from cpu_train_stack.plan import page as plan_page
from cpu_train_stack.plan import planner
from tooling.basis.console import PrintableConsole
from tooling.basis.paths import CACHE
from tooling.engine import podman
from tooling.engine.decide import EnginePlan, any_known, buildkit_is_enough, decide, lacking
from tooling.engine.find import EngineHost, Findings, find, read_host

GIGABYTE = 1_000_000_000
DEMO_DISK = 6 * GIGABYTE  # image, build cache, wheels, containers and a model, of the default pin
DEMO_MEMORY = 4 * GIGABYTE  # two ranks that fine-tune a small encoder
DEFAULT_DOCKER_ROOT = "/var/lib/docker"


def judge(name: str, good: bool, detail: str, fix: str, otherwise: CheckStatus = CheckStatus.WARNING) -> Check:
    """A check that is OK if `good`. If not, it has the status `otherwise` and a fix."""
    return Check(name, CheckStatus.OK, detail) if good else Check(name, otherwise, detail, fix)


def check_system(host: EngineHost, machine: str) -> Check:
    """The images are for x86-64 Linux."""
    detail = f"{host.name}, {machine}{', root' if host.root else ''}"
    fix = "use an x86-64 machine: the images are built for x86-64"
    return judge("system", machine in ("x86_64", "AMD64"), detail, fix, CheckStatus.ERROR)


def check_disk(name: str, path: Path, free: int) -> Check:
    """`free`: in bytes."""
    detail = f"{free / GIGABYTE:.0f} GB free at {path}"
    fix = f"free some space: the demo needs about {DEMO_DISK / GIGABYTE:.0f} GB"
    return judge(
        name, free >= DEMO_DISK, detail, fix, CheckStatus.ERROR if free < DEMO_DISK / 2 else CheckStatus.WARNING
    )


def check_memory(meminfo: str) -> Check:
    """`meminfo` is /proc/meminfo, in kB."""
    fields = dict(re.findall(r"^(\w+):\s+(\d+) kB", meminfo, re.MULTILINE))
    if "MemTotal" not in fields:
        return Check("memory", CheckStatus.WARNING, "unknown", "run ./inv doctor on Linux")
    total, available = (int(fields.get(key, 0)) * 1024 for key in ("MemTotal", "MemAvailable"))
    detail = f"{available / GIGABYTE:.0f} GB available of {total / GIGABYTE:.0f} GB"
    fix = f"free some memory: the demo needs about {DEMO_MEMORY / GIGABYTE:.0f} GB"
    return judge("memory", available >= DEMO_MEMORY, detail, fix)


def check_cpus(usable: int) -> Check:
    """`usable`: the number of CPUs that this process may use."""
    return judge("CPUs", usable >= 2, f"{usable} usable", "two ranks will share a CPU: use two or more CPUs")


def check_bf16(bf16: str) -> Check:
    """`bf16`: the CPU's best bf16 instructions."""
    good = bf16 != cpus.EMULATED
    detail = bf16 if good else "no amx_bf16 or avx512_bf16: --bf16 is not faster than fp32"
    return judge("bf16", good, detail, cpus.BF16_FIX)


def check_podman(facts: Mapping[str, Any]) -> Check:
    """`facts`: the output of `podman info`. Podman runs images where Docker is missing."""
    detail = f"{facts['version']['Version']}, {facts['store']['graphDriverName']}"
    fix = podman.refusal(facts) or podman.slow_storage(facts) or ""
    return judge("podman", not fix, detail, fix)


def check_docker(findings: Findings, host: EngineHost, *, other: bool = False) -> list[Check]:
    """Engine, BuildKit, client, compose, buildx and mmdebstrap. One plan has the fix for all of them.

    `other`: podman can run images, so that only builds need Docker.
    """
    plan = decide(findings, host)
    bad = CheckStatus.ERROR if plan.refusal and not other else CheckStatus.WARNING
    fix = plan.refusal or _promise(plan)
    missing = lacking(findings)
    facts = findings.engine
    checks = []
    if facts:
        detail = f"{facts.version} at {findings.endpoint}, {facts.storage_driver}, cgroup v{facts.cgroup_version}"
        enough = buildkit_is_enough(findings.buildkit, facts.version)
        by = any_known(findings.buildkit) or f"Engine {facts.version} has {'>=' if enough else '<'} 0.12"
        checks += [Check("Docker Engine", CheckStatus.OK, detail), judge("BuildKit", enough, by, fix, bad)]
    else:
        installed = findings.dockerd and f"installed, but does not answer ({findings.problem})"
        elsewhere = findings.chosen_by and f"{findings.endpoint} does not answer ({findings.problem})"
        checks.append(Check("Docker Engine", bad, elsewhere or installed or "not found", fix))
    for name, key, version in (
        ("docker client", "the docker client", findings.client),
        ("compose", "compose v2", findings.compose),
        ("buildx", "buildx >= 0.8", findings.buildx),
    ):
        checks.append(judge(name, key not in missing, version or "not found", fix, bad))
    found = findings.mmdebstrap
    hint = "apt-get install mmdebstrap, which builds the base image if no registry answers"
    return [*checks, judge("mmdebstrap", found is not None, found or "not found", hint)]


def _promise(plan: EnginePlan) -> str:
    actions = [f"installs {', '.join(plan.packages)}"] if plan.packages else []
    actions += ["starts Docker"] if plan.start else []
    return f"the first command that needs Docker {' and '.join(actions)}" if actions else ""


def check_git(path: str | None) -> Check:
    """git provides the revision in the labels of an image."""
    fix = "install git: an image's labels name the git revision"
    return judge("git", path is not None, path or "not found", fix)


def examine() -> list[Check]:
    """All checks of this machine."""
    host, findings = read_host(), find()
    checks = [
        check_system(host, platform.machine()),
        Check("Python", CheckStatus.OK, f"{platform.python_version()}, {sys.executable}"),
        check_cpus(_usable_cpus()),
        check_memory(files.text(Path("/proc/meminfo"))),
        check_bf16(cpus.read_model().bf16),
    ]
    disks = {"disk for .cache": CACHE}
    if findings.endpoint.startswith("unix:"):  # the engine is on this machine, and so is its disk
        docker_root = findings.engine.root_dir if findings.engine else DEFAULT_DOCKER_ROOT
        disks["disk for Docker"] = Path(docker_root)
    for name, wanted in disks.items():
        path = _nearest_folder(wanted)
        checks.append(check_disk(name, path, shutil.disk_usage(path).free))
    if podman.installed():
        try:
            checks.append(check_podman(podman.read_facts()))
        except UsageError as error:
            checks.append(Check("podman", CheckStatus.WARNING, "podman info failed", str(error)))
    other = checks[-1].name == "podman" and checks[-1].status is CheckStatus.OK
    return [*checks, *check_docker(findings, host, other=other), check_git(shutil.which("git"))]


def _nearest_folder(path: Path) -> Path:
    """The path, or the nearest parent that exists and that this user can see."""
    for place in (path, *path.parents):
        with suppress(PermissionError):  # the folder is below one that this user may not enter
            if place.is_dir():
                return place
    return Path("/")


def _usable_cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def table(checks: Sequence[Check]) -> Table:
    """One row for each check."""
    colours = {CheckStatus.OK: "green", CheckStatus.WARNING: "yellow", CheckStatus.ERROR: "red"}
    shown = Table("check", "status", "detail", "fix")
    for check in checks:
        status = f"[{colours[check.status]}]{check.status.value}[/]"
        shown.add_row(check.name, status, escape(check.detail), escape(check.fix))
    return shown


def _picture() -> list[Drawing]:
    """The cores of this machine, with the ranks that `launch` in a container of all CPUs starts by default."""
    try:
        host = topology.read()
        title = "This machine, with the ranks that launch starts by default"
        return plan_page.drawings(title, host, plan_command.node(host, planner.ranks_for(host), os.environ))
    except (OSError, ValueError, LookupError, errors.UsageError):  # a check shows what is wrong
        return []


def run(*, as_json: bool, html: str | None = None) -> None:
    """Print the table or the JSON. `html`: a file for the page. Raises Exit with 1 if a check is an error."""
    checks = examine()
    if html:
        found = page.page(f"This machine: {platform.node()}", checks, _picture())
        write_output(Path(html), render.html_text(found), "--html")
    if as_json:
        print(document(checks))
    else:
        PrintableConsole().print(table(checks))
    if any(check.status is CheckStatus.ERROR for check in checks):
        raise Exit(code=1)
