"""The tasks about this machine, about this checkout, and about records of jobs."""

from pathlib import Path
from typing import Annotated

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.say import show
from cpu_train_stack.report import compare as report
from tooling.basis.console import HtmlOption, JsonOption
from tooling.checks import in_image, suite
from tooling.cli.options import task
from tooling.engine import api
from tooling.engine import doctor as engine_doctor
from tooling.image.choice import TORCH_SOURCE_HELP, Choice


@task
def doctor(json: JsonOption = False, html: HtmlOption = None) -> None:
    """Show what this machine has, what it lacks, and how to fix it."""
    engine_doctor.run(as_json=json, html=html)


@task(words="folders")
def compare(
    folders: Annotated[tuple[str, ...], "an output folder of a job; under ./inv, the flag can be left out"] = (),
    output: Annotated[str, "the file to write"] = report.NAME,
) -> None:
    """Compare jobs on one HTML page: ./inv compare FOLDER FOLDER ..."""
    show(str(report.write([Path(folder) for folder in folders], Path(output))))


@task(name="test")
def run_suite(
    part: Annotated[
        str | None, "unit (the checks, and the tests that need no Docker), image, cluster, emulated, or a file"
    ] = None,
    inside: Annotated[
        str | None, "a row of ./inv matrix: run only the unit tests of entrypoints, in its image"
    ] = None,
    torch_source: Annotated[str, f"with --inside: {TORCH_SOURCE_HELP}"] = "",
) -> None:
    """Run the checks (ruff, mypy) and the complete test suite."""
    if (part and inside) or (torch_source and not inside):
        raise UsageError("test takes --part, or --inside PIN with or without --torch-source: give one of the two")
    if inside:
        in_image.run(Choice(inside, torch_source=torch_source, engine=api.DOCKER))
    else:
        suite.run(part)
