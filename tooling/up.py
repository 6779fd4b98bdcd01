"""`./inv up`, `down` and `logs`: a cluster to play with."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from invoke.exceptions import Exit

from tooling import cluster, compose, engine, images, nodes, pins
from tooling.compose import ClusterSpec, Mount
from tooling.errors import UsageError
from tooling.say import say


def up(
    command: Sequence[str],
    pin: str | None,
    node_count: int,
    ranks_per_node: int,
    name: str,
    data: str | None,
    output: str | None,
    environment: Sequence[str],
    offline: bool,
    detach: bool,
    launcher: str,
    memory: str | None,
) -> None:
    """Runs `command` on a cluster and exits with its code; with `detach` leaves the cluster running."""
    chosen = pins.load().pin(pin)
    folder = Path(output) if output else cluster.folder_of(cluster.check_name(name)) / "output"
    mounts = [Mount(Path(data).resolve(), "/data")] if data else []
    spec = ClusterSpec(
        name=cluster.check_name(name),
        image=chosen.image,
        nodes=node_count,
        ranks_per_node=ranks_per_node,
        command=tuple(command),
        mounts=(*mounts, Mount(cluster.writable_folder(folder), "/output", read_only=False)),
        environment=variables(environment),
        offline=offline,
        launcher=launcher,
        memory=memory,
    )
    docker = engine.ensure(say)
    spec = spec.with_environment(CPU_TRAIN_STACK_IMAGE=images.build(chosen, say).id)
    if detach:
        cluster.start(spec, docker, say)
        say(f"cluster {name} is up: ./inv logs --name {name} shows its output, ./inv down --name {name} ends it")
        return
    outcome = cluster.run(spec, docker, say)
    say(f"output folder: {folder}")
    if outcome.exit_code != 0:
        raise Exit(code=outcome.exit_code)


def down(name: str | None) -> None:
    """Ends a cluster; without a name, the only one there is."""
    chosen = name or _only(_names())
    if chosen not in _names():
        raise UsageError(f"there is no cluster {chosen!r}: {_listed(_names())}")
    cluster.down(chosen)
    say(f"cluster {chosen} is down")


def logs(name: str | None, follow: bool) -> None:
    """Prints a cluster's output: live while it is up, from its log file afterwards."""
    chosen = name or _only(_names() or _ended())
    if chosen in _names():
        arguments = ["logs", "--no-color", *(["--follow"] if follow else [])]
        subprocess.run(compose.argv(compose.PROJECT_PREFIX + chosen, *arguments), check=False)
        return
    log = cluster.folder_of(cluster.check_name(chosen)) / "log.txt"
    if not log.is_file():
        raise UsageError(f"there is no cluster {chosen!r}: {_listed(_names() or _ended())}")
    print(log.read_text(encoding="utf-8", errors="replace"), end="")


def variables(words: Sequence[str]) -> dict[str, str | None]:
    """`NAME=VALUE` sets a variable in every rank; `NAME` hands on the caller's value without writing it down."""
    result: dict[str, str | None] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not key.isidentifier():
            raise UsageError(f"--env {word!r}: expected NAME=VALUE, or NAME to hand on your own value")
        result[key] = value if equals else None
    return result


def _names() -> list[str]:
    found = engine.find()
    if found.engine is None:
        raise UsageError(f"Docker does not answer: {found.problem or 'not found'}; ./inv doctor says more")
    prefix = compose.PROJECT_PREFIX
    projects = {node.project for node in nodes.read(found.endpoint) if node.project.startswith(prefix)}
    return sorted(project.removeprefix(prefix) for project in projects)


def _ended() -> list[str]:
    return sorted(log.parent.name for log in cluster.CLUSTERS.glob("*/log.txt"))


def _only(names: Sequence[str]) -> str:
    if len(names) != 1:
        raise UsageError(f"which cluster? {_listed(names)}; name one with --name")
    return names[0]


def _listed(names: Sequence[str]) -> str:
    return f"there are {', '.join(names)}" if names else "there is none"
