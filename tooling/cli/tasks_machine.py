"""The tasks about this machine and this checkout."""

from __future__ import annotations

from invoke.context import Context

from tooling.basis.errors import UsageError
from tooling.basis.say import say
from tooling.checks import in_image, suite
from tooling.cli.options import TORCH_SOURCE_HELP, task
from tooling.engine import doctor as host_doctor
from tooling.image.choice import Choice


@task()
def doctor(_c: Context, json: bool = False) -> None:
    """Show what this machine has, what it lacks, and how to fix it."""
    host_doctor.run(as_json=json)


@task(
    name="test",
    help={
        "part": "unit (the checks, and the tests that need no Docker), image, cluster, or a file in tests/",
        "inside": "a row of ./inv matrix: only the entrypoints' unit tests, in its image",
        "torch-source": f"with --inside: {TORCH_SOURCE_HELP}",
    },
)
def run_suite(_c: Context, part: str | None = None, inside: str | None = None, torch_source: str = "row") -> None:
    """Run the checks (ruff, mypy) and the complete test suite."""
    if (part and inside) or (torch_source != "row" and not inside):
        raise UsageError("test takes --part, or --inside PIN with or without --torch-source: give one of the two")
    if inside:
        in_image.run(Choice(inside, torch_source=torch_source), say)
    else:
        suite.run(part)
