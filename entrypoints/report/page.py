"""The HTML file: the blocks as JSON, with the script and style that draw them. The file needs no network.

The data cannot become HTML: JSON in the page has no "<", and the script inserts texts as texts. A policy in the
page (Content-Security-Policy) lets the browser run only the scripts whose hashes it lists, and load nothing.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
import re
import time
from pathlib import Path
from typing import Any

from entrypoints.cli.errors import UsageError
from entrypoints.records import job as records
from entrypoints.records.job import Job
from entrypoints.report import blocks, document
from entrypoints.report.blocks import Page

NAME = "report.html"
_RESULT = "result.json"
_ASSETS = Path(__file__).parent / "assets"
# What ends a script or begins a comment in HTML, and line ends that JavaScript knows and JSON does not.
_ESCAPED = str.maketrans({one: f"\\u{ord(one):04x}" for one in "<>&\u2028\u2029"})


def write(output: Path) -> Path:
    """Write OUTPUT/report.html from the job's records and result.json. Returns its path. Raises UsageError."""
    return save(of(output), output / NAME)


def of(output: Path) -> Page:
    """The page of the job in this folder. Raises UsageError without records."""
    job = read(output)
    return document.document(job, read_result(job), time.time())


def read(output: Path) -> Job:
    """The job's records. Raises UsageError if there are none, and if they cannot be read."""
    try:
        return records.read(output)
    except OSError as error:
        raise UsageError(
            f"cannot read '{error.filename}': {error.strerror}; read it as the user who ran the job"
        ) from error


def read_result(job: Job) -> dict[str, Any]:
    """result.json of this job; empty if the job has not written it. Raises UsageError if it is not valid."""
    path = job.folder / _RESULT
    try:
        # A job that fails leaves the file of an earlier job in the folder.
        if path.stat().st_mtime < job.first.start.time:
            return {}
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UsageError(f"'{path}': expected the JSON that `train` writes, found: {error}; delete it") from error
    if not isinstance(found, dict):
        raise UsageError(f"'{path}': expected a JSON object, found {type(found).__name__}; delete the file")
    return found


def save(page: Page, file: Path) -> Path:
    """Write the page so that no reader sees an incomplete file. Raises UsageError if that is impossible."""
    partial = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        partial.write_text(render(page), encoding="utf-8")
        partial.replace(file)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise UsageError(
            f"cannot write '{file}': {error.strerror}; name a file in a folder that you can write to with --output"
        ) from error
    return file


def render(page: Page) -> str:
    """The page's HTML."""
    scripts = {"script": _asset("charts.js") + _asset("page.js"), "uplot": _asset("uPlot.iife.min.js")}
    values = {
        **scripts,
        "policy": html.escape(_policy(*scripts.values())),
        "title": html.escape(page.title),
        "verdict": html.escape(page.verdict),
        "licence": _asset("LICENSE").replace("--", "- -"),
        "style": _asset("uPlot.min.css") + "\n" + _asset("page.css"),
        "data": json_text(blocks.encode(page)),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda found: values[found[1]], _asset("page.html"))


def json_text(document: Any) -> str:
    """JSON for a script element: valid JSON that contains no HTML."""
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.translate(_ESCAPED)


def _policy(*scripts: str) -> str:
    hashes = " ".join(f"'sha256-{_digest(text)}'" for text in scripts)
    return f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; base-uri 'none'"


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")
