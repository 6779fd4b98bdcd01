"""The process group's backends, and the preparation of each: its interface, variables and library."""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from typing import Callable

from cpu_train_stack.cli import packages
from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.say import say
from cpu_train_stack.machine import network
from cpu_train_stack.machine.shared_memory import DIRECTORY, Space, needed, online_cpus, option, read, workers
from cpu_train_stack.placement.detect import DistributedEnvironment
from cpu_train_stack.plan import ccl


def installed_backends() -> list[str]:
    return [backend for backend in BACKENDS if backend != "ccl" or packages.installed(packages.CCL)]


def check_backend(name: str) -> str:
    """`name`. Raises UsageError if this image has no such backend."""
    if name not in installed_backends():
        known = ", ".join(installed_backends())
        raise UsageError(f"backend {name!r} is not in this image, expected one of: {known}")
    return name


def prepare_gloo(environment: DistributedEnvironment, deadline_seconds: float) -> None:
    """Exports the interface. Raises UsageError."""
    wanted = os.environ.get(network.USERS_CHOICE, "")
    choice = network.choose(environment.master_addr, environment.several_nodes, wanted, deadline_seconds)
    os.environ[network.USERS_CHOICE] = choice.interface


def prepare_ccl(environment: DistributedEnvironment, deadline_seconds: float) -> None:
    """Exports the interface and oneCCL's variables, and registers the backend with torch. Raises UsageError."""
    prepare_gloo(environment, deadline_seconds)  # the job may create gloo groups too
    ranks, users = environment.local_world_size, os.environ.get("CCL_ATL_SHM")
    # Checked before the ranks connect: all see the same free space, because no rank has used any yet.
    warning = shared_memory_warning(ranks, read(), online_cpus(), workers(os.environ))
    set_defaults(os.environ, environment, os.environ[network.USERS_CHOICE], ranks > 1 and warning is None)
    if warning and not users and environment.local_rank == 0:
        say(f"warning: {warning}")
    try:
        __import__(packages.CCL)
    except ImportError as error:
        raise UsageError(f"backend 'ccl' cannot be loaded: {error}: use --backend gloo instead") from error


# The preparation of each backend, by its name on the command line.
BACKENDS: dict[str, Callable[[DistributedEnvironment, float], None]] = {"ccl": prepare_ccl, "gloo": prepare_gloo}


def set_defaults(
    environ: MutableMapping[str, str], environment: DistributedEnvironment, interface: str, shared_memory: bool
) -> None:
    """Sets oneCCL's variables that neither the user nor the plan has set."""
    for name, value in ccl.group_variables(environment, interface, shared_memory).items():
        environ[name] = environ.get(name) or value  # manifests may set a variable to nothing


def shared_memory_warning(local_world_size: int, space: Space, cpus: int, workers: int = 1) -> str | None:
    """The warning if `space` is too small for the ranks of this node. `cpus`, `workers`: see `needed`."""
    wanted = needed(local_world_size, cpus, workers)
    if space.free >= wanted:
        return None
    each = f" with {workers} oneCCL workers each" if workers > 1 else ""
    return (
        f"{DIRECTORY} has {space.free >> 20} MiB free, expected {wanted >> 20} MiB for {local_world_size} "
        f"ranks{each} on a host with {cpus} CPUs: they use tcp, which is slower than shared memory: start the "
        f"container with docker run {option(local_world_size, cpus, workers)}"
    )
