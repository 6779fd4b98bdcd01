"""Which nodes, and how many ranks on each: mpirun's hostfile and its short form."""

from __future__ import annotations

import re
from pathlib import Path

from entrypoints.cli.errors import UsageError

# A node in either form. Anything after a space (slots=2, options) is ignored.
_NODE = re.compile(r"(?P<host>[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)(:[0-9]+)?(\s.*)?")


def read(text: str) -> tuple[str, ...]:
    """The hosts of `--hosts`: a hostfile (one node per line, `host` or `host:slots`), or node-0,node-1.

    Slots are ignored: every node gets the same number of ranks. Raises UsageError.
    """
    path = Path(text)
    if "/" in text and not path.is_file():
        raise UsageError(f"--hosts {text} is not a file, expected a hostfile or names like node-0,node-1")
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else text.split(",")
    entries = [entry for line in lines if (entry := line.split("#")[0].strip())]
    nodes = [_NODE.fullmatch(entry) for entry in entries]
    wrong = [entry for entry, node in zip(entries, nodes) if node is None]
    if wrong or not entries:
        found = ", ".join(map(repr, wrong)) or "no host"
        raise UsageError(
            f"--hosts {text}: found {found}, expected names or IPv4 addresses of nodes (NAME or NAME:SLOTS)"
        )
    hosts = tuple(node["host"] for node in nodes if node)
    twice = sorted({host for host in hosts if hosts.count(host) > 1})
    if twice:
        raise UsageError(f"--hosts {text}: {', '.join(twice)} is listed twice: list each node once")
    return hosts
