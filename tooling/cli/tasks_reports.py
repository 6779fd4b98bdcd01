"""The task that compares jobs by their records."""

from functools import partial
from pathlib import Path
from typing import Annotated

from entrypoints.report import compare as report
from tooling.cli.options import Task


@partial(Task, words="folders")
def compare(
    folders: Annotated[tuple[str, ...], "an output folder of a job; the flag can be left out"] = (),
    output: Annotated[str, "the file to write"] = report.NAME,
) -> None:
    """Compare jobs on one HTML page: ./inv compare FOLDER FOLDER ..."""
    print(report.write([Path(folder) for folder in folders], Path(output)))
