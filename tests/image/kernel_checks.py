"""The scripts that check the kernels: where they are, and what they print."""

from __future__ import annotations

import re
from pathlib import Path

SCRIPTS = Path(__file__).with_name("scripts")


def checks_of(name: str) -> list[str]:
    """The names of a script's checks. It prints a line for each, which begins with the name."""
    text = (SCRIPTS / f"{name}.py").read_text()
    checks = re.findall(r"^def (\w+)\(\) -> (?:None|int):$", text, re.MULTILINE)
    assert checks
    return sorted(checks)


def printed(output: str) -> list[str]:
    """The names of the checks that passed, from a script's output."""
    return sorted(line.split()[0] for line in output.splitlines())
