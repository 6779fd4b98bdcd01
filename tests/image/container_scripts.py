"""The scripts in scripts/, which run in containers: their mount, and the names of their checks."""

import re
from pathlib import Path

SCRIPTS = Path(__file__).with_name("scripts")
MOUNT = ("--volume", f"{SCRIPTS}:/s:ro")


def checks_of(name: str) -> list[str]:
    """The names of a script's checks. It prints a line for each, which begins with the name."""
    text = (SCRIPTS / f"{name}.py").read_text()
    checks = re.findall(r"^def (\w+)\(\) -> (?:None|int):$", text, re.MULTILINE)
    assert checks
    return sorted(set(checks) - {"main"})


def printed(output: str) -> list[str]:
    """The names of the checks that passed, from a script's output."""
    return sorted(line.split()[0] for line in output.splitlines())
