"""Finds what a cluster left behind: containers, networks, volumes, keys, processes.

Shared memory is not checked: each container has a private /dev/shm, which is removed with the container.
"""

import re
import time
from pathlib import Path

from cpu_train_stack.cli import files
from tooling.cluster import compose, run
from tooling.engine import docker

SETTLE_SECONDS = 5.0
_POLL_SECONDS = 0.2
# The cgroup of a container's processes, and an argument of the container's shim, contain the container's ID.
_CONTAINER = re.compile(r"(?:docker[-/]|-(?:container-)?id\x00)([0-9a-f]{64})")


def of(name: str) -> tuple[str, ...]:
    """Everything that the last cluster of this name left behind."""
    return (*of_cluster(name), *orphans(run.containers_of(name)))


def of_cluster(name: str) -> list[str]:
    """A cluster's containers, networks, volumes and keys that exist, such as "network NAME"."""
    filters = ("--filter", f"name=^{compose.PROJECT_PREFIX}{name}[-_]")
    left = docker.output("ps", "--all", *filters, "--format", "container {{.Names}}")
    left += docker.output("network", "ls", *filters, "--format", "network {{.Name}}")
    left += docker.output("volume", "ls", *filters, "--format", "volume {{.Name}}")
    keys = run.folder_of(name) / "ssh"
    return [*left.splitlines(), *([f"keys {keys}"] if keys.exists() else [])]


def orphans(containers: frozenset[str]) -> list[str]:
    """Processes (including shims) on this machine of those `containers` (IDs) that the engine has removed.

    A process that ends within SETTLE_SECONDS is not listed. Finds nothing if the engine runs on another machine.
    """
    deadline = time.monotonic() + SETTLE_SECONDS
    while found := _orphans(containers):
        if time.monotonic() > deadline:
            return [f"process {number}" for number in found]
        time.sleep(_POLL_SECONDS)
    return []


def _orphans(containers: frozenset[str]) -> list[str]:
    seen = {process.name: _containers(process) & containers for process in Path("/proc").glob("[0-9]*")}
    known = set(docker.output("ps", "--all", "--quiet", "--no-trunc").split())
    return sorted((number for number, names in seen.items() if names - known), key=int)


def _containers(process: Path) -> set[str]:
    texts = [files.text(process / file) for file in ("cgroup", "cmdline")]  # empty if it has ended
    return {name for text in texts for name in _CONTAINER.findall(text)}
