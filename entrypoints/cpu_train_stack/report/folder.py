"""The report of the job in a folder: reads its records, result.json and forecast.json, writes report.html."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from cpu_train_stack import contract
from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.files import parse_json, read_below
from cpu_train_stack.page import render
from cpu_train_stack.page.blocks import Page
from cpu_train_stack.records import job as records
from cpu_train_stack.records.job import RecordedJob
from cpu_train_stack.report import document, scaling

_RESULT = "result.json"


def write(output: Path) -> Path:
    """Write OUTPUT/report.html from the job's records and result.json. Returns its path. Raises UsageError."""
    return render.save(of(output), output / contract.REPORT)


def of(output: Path) -> Page:
    """The page of the job in this folder. Raises UsageError without records."""
    job = read(output)
    return document.document(job, read_result(job), scaling.read(output), time.time())


def read(output: Path) -> RecordedJob:
    """The job's records. Raises UsageError if there are none, and if they cannot be read."""
    try:
        return records.read(output)
    except OSError as error:
        raise UsageError(
            f"cannot read '{error.filename}': {error.strerror}; read it as the user who ran the job"
        ) from error


def read_result(job: RecordedJob) -> dict[str, Any]:
    """result.json of this job; empty if the job has not written it. Raises UsageError if it is not valid."""
    path = job.folder / _RESULT
    try:
        # A job that fails leaves the file of an earlier job in the folder.
        if path.stat().st_mtime < job.first.start.time:
            return {}
        found = parse_json(read_below(job.folder, _RESULT))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"'{path}': expected the JSON that `train` writes, found: {reason}; delete it") from error
    if not isinstance(found, dict):
        raise UsageError(f"'{path}': expected a JSON object, found {type(found).__name__}; delete the file")
    return found
