"""A job on three hosts, for the tests of tooling.hosts."""

from __future__ import annotations

from dataclasses import replace

from entrypoints.launch.mpi.hostfile import Host
from tooling.hosts.job import Job

HOSTS = (Host("alpha"), Host("beta", user="me"), Host("gamma"))


def job(**changes: object) -> Job:
    plain = Job(
        name="one",
        hosts=HOSTS,
        ranks_per_node=2,
        launcher="torchrun",
        image="stack:1",
        locked=False,
        command=("train", "--x", "a b"),
    )
    return replace(plain, **changes)  # type: ignore[arg-type]
