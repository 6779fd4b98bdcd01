"""`./inv dev canaries`: whether the releases of the libraries in an image still need each adaptation.

The canaries are in tests/image/scripts/canaries, and run with plain Python, without the adaptations.
"""

import json
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from invoke.exceptions import Exit
from rich.table import Table

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.printable import last_line
from cpu_train_stack.cli.say import say
from tooling.basis.console import console
from tooling.basis.paths import ROOT
from tooling.engine import api, docker
from tooling.image.choice import Choice
from tooling.wheels import locks, resolve

SCRIPTS = ROOT / "tests" / "image" / "scripts" / "canaries"
LIMIT_SECONDS = 1200.0
# The packages of --newest, and tokenizers, of which each transformers accepts only some releases.
NEWEST = ("transformers", "accelerate", "peft", "datasets", "evaluate", "huggingface-hub", "tokenizers")
# What to do, by result.
ADVICE = {
    "no longer needed: remove": "set `until` in its `Releases`, or remove it if no row of the matrix has an "
    "older release",
    "hook moved: broken": "change the adaptation for this release, then its canary",
}


def sing(image: str) -> dict[str, Any]:
    """The versions in an image, and a row for each adaptation. Raises UsageError without a result."""
    command = ["python", "/canaries/main.py"]
    mounts = ["--network=none", f"--volume={SCRIPTS}:/canaries:ro", "--env=HF_HUB_OFFLINE=1"]
    done = docker.run(image, command, mounts, subprocess.PIPE, subprocess.PIPE, LIMIT_SECONDS)
    try:
        document: dict[str, Any] = json.loads(done.stdout)
    except json.JSONDecodeError:
        said = last_line(done.stderr.decode(errors="replace"))
        raise UsageError(f"the canaries ended with exit code {done.returncode}: {said}") from None
    return document


def run(pin: str | None, assignments: Sequence[str], newest: bool, as_json: bool) -> None:
    """Run all canaries and print the table. Raises Exit with code 1 if an adaptation is broken or not needed."""
    if newest:
        given = {assignment.partition("=")[0] for assignment in assignments}
        names = [name for name in NEWEST if name not in given]
        found = resolve.newest(locks.choose_pin(pin, assignments), names)
        assignments = (*assignments, *(f"{name}={version}" for name, version in found.items()))
        say(f"the newest releases that fit together: {', '.join(assignments)}")
    _, image = Choice(pin, set=tuple(assignments), engine=api.DOCKER).ensure()
    document = sing(image.id)
    if as_json:
        print(json.dumps(document, indent=1))
    else:
        console(160).print(_table(document))
    wrong = {result: [row["name"] for row in document["rows"] if row["result"] == result] for result in ADVICE}
    if lines := [f"{result}: {', '.join(names)}: {ADVICE[result]}" for result, names in wrong.items() if names]:
        raise Exit("; ".join(lines), code=1)


def _table(document: Mapping[str, Any]) -> Table:
    versions = ", ".join(f"{name} {version}" for name, version in document["versions"].items())
    table = Table("adaptation", "releases", "last seen", "result", title=versions, title_justify="left")
    table.add_column("", overflow="fold")
    for row in document["rows"]:
        seen = ", ".join(f"{name} {version}" for name, version in row["seen"].items())
        table.add_row(
            row["name"], ", ".join(row["releases"]), seen, row["result"], row["detail"] or row["upstream"]
        )
    return table
