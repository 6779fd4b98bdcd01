"""Security advisories known for the image's versions when it was built, from a file beside the entrypoints."""

from __future__ import annotations

import json
from pathlib import Path

from entrypoints.doctor.checks import Check, Status

FILE = Path(__file__).resolve().parents[2] / "advisories.json"
NAME = "advisories"


def examine() -> list[Check]:
    """A warning for each advisory: training works, with files from a source that you trust."""
    if not FILE.is_file():
        fix = "use an image built by ./inv build"
        return [Check(NAME, Status.WARNING, f"unknown: {FILE} does not exist", fix)]
    known = json.loads(FILE.read_text(encoding="utf-8"))
    if not known:
        return [Check(NAME, Status.OK, "none known for the pin's versions when the image was built")]
    return [Check(NAME, Status.WARNING, advisory["detail"], advisory["fix"]) for advisory in known]
