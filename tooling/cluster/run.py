"""A local cluster: N containers on a private network run one job, and are then removed.

The cluster's exit code is 0 if every node exited with 0, otherwise the exit code of the node that failed first.
When one node fails, the other nodes are stopped.

`./inv up` (tooling.cluster.up), the demo, benchmarks and soak tests call `run`. It starts the containers with
`containers`, copies their output with `follow`, and watches them with `wait` and `nodes`.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from cpu_train_stack import contract
from cpu_train_stack.cli import files, signals
from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.files import LockedError, create_writable, locked
from cpu_train_stack.cli.say import say
from cpu_train_stack.machine import topology
from tooling.basis import yaml
from tooling.basis.paths import CACHE
from tooling.cluster import compose, containers, follow, keys, nodes, users, wait
from tooling.cluster.compose import ClusterSpec
from tooling.cluster.spec import ContainerSpec
from tooling.engine import api
from tooling.engine.api import Engine
from tooling.engine.failures import EngineLostError

CLUSTERS = CACHE / "clusters"


@dataclass(frozen=True)
class Outcome:
    """How a cluster ended. `taken_down`: ./inv down ended it."""

    exit_code: int
    taken_down: bool = False


def run(
    spec: ClusterSpec,
    engine: Engine,
    shown: BinaryIO | None = None,
    prepare: Callable[[], object] = lambda: None,
) -> Outcome:
    """Start the cluster, print its output, wait for its end, and always remove its containers.

    `prepare` removes the files of an earlier run. It is called after the check that no cluster of this name is
    running. The output goes to `shown`, by default standard output. If the engine is lost, the job fails with
    STUCK_EXIT_CODE, and the containers are removed when the engine is back. Raises EngineGoneError if the engine
    does not come back, and UsageError if the cluster is running.
    """
    log = folder_of(spec.name) / "log.txt"
    with _reserved(spec.name):
        _remove_leftovers(spec)
        prepare()
        with _torn_down(spec.name, engine.endpoint):
            try:
                _start_containers(spec, engine.endpoint)
                with follow.following(engine.endpoint, spec.project, log, shown or sys.stdout.buffer):
                    exit_code = wait.until_end(spec, engine.endpoint)
            except EngineLostError as error:
                say(str(error))
                return Outcome(wait.STUCK_EXIT_CODE)
            return Outcome(exit_code, _taken_down(spec.name).exists())


def start(spec: ClusterSpec, engine: Engine) -> None:
    """Start the cluster and leave it running."""
    with _reserved(spec.name):
        _remove_leftovers(spec)
        try:
            _start_containers(spec, engine.endpoint)
        except BaseException:
            with signals.delayed():
                remove(spec.name, engine.endpoint)
            raise


def _start_containers(spec: ClusterSpec, endpoint: str) -> None:
    """Create and start the containers, and record their IDs. Neither builds nor pulls images."""
    started = containers.start(spec, _prepare(spec), folder_of(spec.name) / "compose.yaml", endpoint)
    with _containers(spec.name).open("a", encoding="ascii") as stream:
        stream.writelines(f"{container}\n" for container in started)


def containers_of(name: str) -> frozenset[str]:
    """The IDs of all containers of the last cluster of that name, even after its end."""
    file = _containers(name)
    return frozenset(file.read_text(encoding="ascii").split()) if file.is_file() else frozenset()


def take_down(name: str) -> None:
    """`./inv down`: remove a cluster, and keep a running ./inv up --max-restarts from restarting it."""
    marker = _taken_down(name)
    try:
        if marker.parent.is_dir():
            marker.touch()
    except OSError as error:  # a full disk
        say(f"{marker}: {error.strerror}: a running ./inv up --max-restarts may start the cluster again")
    for engine in api.running():
        remove(name, engine.endpoint)


def remove(name: str, endpoint: str) -> None:
    """Remove a cluster's containers, network and keys. Its log and its output stay."""
    project = compose.PROJECT_PREFIX + name
    log = folder_of(name) / "log.txt"
    try:
        if log.parent.is_dir() and not log.exists() and nodes.read(endpoint, project):
            _save_output(endpoint, project, log)
        containers.remove(project, endpoint)
    finally:
        keys.remove(folder_of(name) / "ssh")


def _save_output(endpoint: str, project: str, log: Path) -> None:
    complete = log.with_suffix(".part")
    try:
        with complete.open("wb") as stream:
            follow.copy(endpoint, project, stream)
        complete.replace(log)
    except OSError as error:
        say(f"{log}: {error.strerror}: the output of the cluster could not be saved")
        with suppress(OSError):
            complete.unlink()


def _prepare(spec: ClusterSpec) -> dict[str, ContainerSpec]:
    """Prepare the cluster's folder, for mpirun with ssh keys. Return its containers.

    A restarted cluster appends to the log of the failed cluster.
    """
    folder = folder_of(spec.name)
    folder.mkdir(parents=True, exist_ok=True)
    if not spec.restarted:
        for old in (folder / "log.txt", _containers(spec.name), _taken_down(spec.name)):
            old.unlink(missing_ok=True)
    for mount in spec.mounts:
        if not mount.source.is_dir():
            raise UsageError(f"{mount.source} is not a folder: choose a folder to mount at {mount.target}")
    if spec.launcher == "mpirun":
        keys.generate(spec, folder / "ssh")
    return compose.containers(spec, topology.read().cores, folder / "ssh")


def output_of(name: str) -> Path | None:
    """The folder on this machine that the last cluster of that name has at /output; None without a cluster."""
    file = folder_of(name) / "compose.yaml"
    if not file.is_file():
        return None
    try:
        services = yaml.read(file)["services"].values()
        mounts = [mount for service in services for mount in service["volumes"]]
        found = [mount["source"] for mount in mounts if mount["target"] == contract.OUTPUT]
        return Path(compose.unescape(found[0])) if found else None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UsageError(f"{file} is not a file written by ./inv up: delete it") from None


def started_at(name: str) -> float:
    """When the last cluster of that name was started, in seconds since the epoch; 0 if that is not known."""
    return files.written(folder_of(name) / "compose.yaml")


def users_folder(path: Path) -> Path:
    """The user's folder for output. A new folder, or an empty one of root, is given to the containers' user.

    Raises UsageError if that user cannot write to the folder.
    """
    try:
        is_new = not path.is_dir() or (path.stat().st_uid == 0 and not any(path.iterdir()))
    except OSError as error:
        raise UsageError(
            f"output folder {path}: {error.strerror}: choose a folder that you can write to"
        ) from None
    if is_new or os.geteuid() != 0:
        return writable_folder(path)
    uid, gid = users.container_user()
    found = path.stat()
    allowed = found.st_mode >> (6 if found.st_uid == uid else 3 if found.st_gid == gid else 0)
    if allowed & 0o3 != 0o3:
        raise UsageError(
            f"output folder {path}: the containers run as uid {uid}, which cannot write to it: choose another "
            f"folder, or run chown {uid}:{gid} {path}"
        )
    return path.resolve()


def writable_folder(path: Path) -> Path:
    """Create a folder that the containers' user can write to. Raises UsageError."""
    try:
        create_writable(path)
        uid, gid = users.container_user()
        if os.geteuid() == 0:
            os.chown(path, uid, gid)
        elif gid != os.getegid() and path.stat().st_gid == os.getegid():  # after `newgrp docker`
            with suppress(PermissionError):  # the caller's groups contain no other one
                os.chown(path, -1, gid)
    except OSError as error:
        raise UsageError(
            f"output folder {path}: {error.strerror}: choose a folder that you can write to"
        ) from None
    return path.resolve()


def folder_of(name: str) -> Path:
    """The folder of a cluster's files: compose.yaml, containers, log.txt, output/, and ssh/ while it runs."""
    return CLUSTERS / name


def _containers(name: str) -> Path:
    return folder_of(name) / "containers"


def _taken_down(name: str) -> Path:
    return folder_of(name) / "taken-down"


@contextmanager
def _reserved(name: str) -> Iterator[None]:
    """Hold the cluster's name while its command runs. The lock ends with the process."""
    try:
        with locked(CLUSTERS / f".{name}.lock", waiting=None):
            yield
    except LockedError:
        raise _is_running(name) from None


@contextmanager
def _torn_down(name: str, endpoint: str) -> Iterator[None]:
    """Remove the cluster at the end. If the engine is lost, wait for it, unless an exception was raised.

    A signal during the removal ends the command after it.
    """
    left = f"run ./inv down --name {name} later to remove what is left of the cluster"
    try:
        yield
    except wait.EngineGoneError:
        raise
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt | SystemExit):
            say(f"removing cluster {name}; its output and log stay")
        with signals.delayed():
            try:
                remove(name, endpoint)
            except EngineLostError as lost:
                say(f"{lost}: {left}")
        raise
    try:
        with signals.delayed():
            remove(name, endpoint)
    except EngineLostError:
        try:
            wait.until_engine_is_back(name, endpoint)
        except (KeyboardInterrupt, SystemExit):
            say(left)
            raise
        with signals.delayed():
            remove(name, endpoint)


def _is_running(name: str) -> UsageError:
    return UsageError(
        f"cluster {name} is running: wait for its end, choose another name (./inv up --name), "
        f"or stop it with ./inv down --name {name}"
    )


def _remove_leftovers(spec: ClusterSpec) -> None:
    """Remove what a killed command left behind. Raises UsageError if the cluster is running, in any engine."""
    left = {engine.endpoint: nodes.read(engine.endpoint, spec.project) for engine in api.running()}
    if any(node.running for found in left.values() for node in found):
        raise _is_running(spec.name)
    for endpoint, found in left.items():
        if found:
            say(f"removing the leftovers of an earlier cluster {spec.name}")
            remove(spec.name, endpoint)
        else:
            containers.remove(spec.project, endpoint)  # its network
