"""What was known against the image's versions when it was built, from a file beside the entrypoints."""

from __future__ import annotations

import json
from pathlib import Path

from entrypoints.doctor.checks import Check, Status

FILE = Path(__file__).resolve().parents[2] / "advisories.json"
NAME = "advisories"


def examine() -> list[Check]:
    """A warning for each advisory: training works, with files that come from a source you trust."""
    if not FILE.is_file():
        mend = "use an image that ./inv build made"
        return [Check(NAME, Status.WARNING, f"nothing to read them from: {FILE} is not there", mend)]
    known = json.loads(FILE.read_text(encoding="utf-8"))
    if not known:
        return [Check(NAME, Status.OK, "none was known of the pin's versions when the image was built")]
    return [Check(NAME, Status.WARNING, advisory["detail"], advisory["fix"]) for advisory in known]
