"""Writes the report when a job ends, without ever ending it in another way."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from cpu_train_stack import contract
from cpu_train_stack.cli.errors import one_line
from cpu_train_stack.cli.say import say
from cpu_train_stack.records import writer
from cpu_train_stack.records.writer import Failed


def write(output: Path) -> None:
    """Write OUTPUT/report.html. A warning if that fails."""
    try:
        from cpu_train_stack.report import folder  # not needed until a job ends

        folder.write(output)
    except Exception as error:  # noqa: BLE001 - the job's own end counts
        say(f"warning: cannot write the job's report in '{output}': {one_line(error)}")


class Failures:
    """Records the failures of ranks that this process starts, because a killed rank cannot."""

    def __init__(self, folder: Path) -> None:
        """`folder`: for a file in which the ranks name their output folder. Sets contract.RECORDS for them."""
        self._pointer = folder / "output-folder"
        os.environ[contract.RECORDS] = str(self._pointer)

    def record(self, failures: Iterable[Failed], and_report: bool = True) -> None:
        """Record the failures of ranks that have ended, and write the report."""
        output = writer.failed(self._pointer, failures)
        if output is not None and and_report:
            write(output)
