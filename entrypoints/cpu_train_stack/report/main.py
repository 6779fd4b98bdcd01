"""`report FOLDER ...`: write the report of a job, or of several, as one HTML file. Torch-free.

report /output                               # /output/report.html
report /output/a /output/b --output ab.html  # compare two jobs
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cpu_train_stack import contract
from cpu_train_stack.cli.options import option, parse_options
from cpu_train_stack.cli.say import show
from cpu_train_stack.page import render
from cpu_train_stack.report import compare, folder


@dataclass(frozen=True)
class ReportOptions:
    """The command line of `report`."""

    folders: tuple[str, ...] = option(
        "", "the --output_dir of a job; several: compare the jobs", (), nargs="+", metavar="FOLDER"
    )
    output: str = option(
        "--output",
        f"the file to write (default: FOLDER/{contract.REPORT}; of several folders, {compare.NAME})",
        "",
        metavar="FILE",
    )


def main(argv: list[str]) -> int:
    description = "Write a report of a job as one HTML file: curves, step times, memory, machine, events."
    options = parse_options(ReportOptions, argv, "report", description)
    folders = [Path(folder) for folder in options.folders]
    if len(folders) > 1:
        path = compare.write(folders, Path(options.output or compare.NAME))
    elif options.output:
        path = render.save(folder.of(folders[0]), Path(options.output))
    else:
        path = folder.write(folders[0])
    show(str(path))
    return 0
