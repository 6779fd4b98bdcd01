"""The tasks of ./inv: a namespace only, the work is in tooling/."""

from __future__ import annotations

from invoke.context import Context
from invoke.tasks import task

from tooling import host_doctor


@task
def doctor(_c: Context, json: bool = False) -> None:
    """Show what this machine has and lacks, with the mend."""
    host_doctor.run(as_json=json)
