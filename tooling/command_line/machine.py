"""The tasks about this machine and this checkout."""

from __future__ import annotations

from invoke.context import Context

from tooling import host_doctor, suite
from tooling.command_line.options import task


@task()
def doctor(_c: Context, json: bool = False) -> None:
    """Show what this machine has and lacks, with the mend."""
    host_doctor.run(as_json=json)


@task(name="test", help={"unit": "only the part that needs no Docker"})
def run_suite(_c: Context, unit: bool = False) -> None:
    """Run the checks (ruff, mypy) and the whole test suite."""
    suite.run(unit_only=unit)
