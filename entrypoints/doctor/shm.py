"""The container's /dev/shm, compared with what the ranks of this node need."""

from __future__ import annotations

import uuid
from pathlib import Path

from entrypoints.cli.numbers import count
from entrypoints.doctor.checks import Check, Status
from entrypoints.machine import shared_memory
from entrypoints.machine.shared_memory import MEBIBYTE, Space

NAME = shared_memory.DIRECTORY
# Batches on their way from data loading workers to a rank: of text they are small.
DATA_LOADING_BYTES = 2 * MEBIBYTE


def judge(space: Space, ranks: int, cpus: int) -> Check:
    """`ranks`: wanted on this node. `cpus`: as for `shared_memory.needed`."""
    found = f"{space.free // MEBIBYTE} of {space.size // MEBIBYTE} MiB free"
    if space.free < ranks * DATA_LOADING_BYTES:
        detail = f"{found}: data loading workers of {count(ranks, 'rank')} will crash"
        return Check(NAME, Status.ERROR, detail, fix(ranks, cpus))
    if ranks == 1:
        return Check(NAME, Status.OK, f"{found}; a single rank on a node needs little")
    wanted = shared_memory.needed(ranks, cpus)
    detail = f"{found}; backend ccl needs {wanted // MEBIBYTE} for {ranks} ranks on a host with {cpus} CPUs"
    if space.free >= wanted:
        return Check(NAME, Status.OK, detail)
    return Check(NAME, Status.WARNING, f"{detail}: its ranks use tcp, which is slower", fix(ranks, cpus))


def fix(ranks: int, cpus: int) -> str:
    size = shared_memory.option(max(ranks, 2), cpus)
    return f"start the container with docker run {size} (Kubernetes: mount an emptyDir of medium Memory there)"


def examine(ranks: int) -> list[Check]:
    cpus = shared_memory.online_cpus()
    probe = Path(NAME) / f"cpu-train-stack-doctor-{uuid.uuid4().hex}"
    try:
        probe.write_bytes(b"0")
        probe.unlink()
        space = shared_memory.read()
    except OSError as error:
        detail = f"cannot be written ({error.strerror}): data loading workers need it"
        return [Check(NAME, Status.ERROR, detail, fix(ranks, cpus))]
    return [judge(space, ranks, cpus)]
