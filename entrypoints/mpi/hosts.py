"""Which nodes, and how many ranks on each: mpirun's hostfile and its short form."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from entrypoints.errors import UsageError

_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")


def read(text: str) -> tuple[str, ...]:
    """The hosts that `--hosts` names: a hostfile (a line a node, `host` or `host:slots`), or node-0,node-1.

    The slots are not read: how many ranks a node gets is one number for all of them. Raises UsageError.
    """
    path = Path(text)
    if "/" in text and not path.is_file():
        raise UsageError(f"--hosts {text} is not a file, expected a hostfile or names like node-0,node-1")
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else text.split(",")
    entries = [line.split("#")[0].strip() for line in lines]
    return check([entry.split(":")[0].split()[0] for entry in entries if entry], text)


def check(hosts: Sequence[str], where: str) -> tuple[str, ...]:
    """`hosts` if each is a host's name and none is there twice."""
    wrong = [host for host in hosts if not _HOST.fullmatch(host)]
    if wrong or not hosts:
        raise UsageError(f"--hosts {where}: found {wrong or 'no host'}, expected names or addresses of nodes")
    twice = sorted({host for host in hosts if hosts.count(host) > 1})
    if twice:
        raise UsageError(f"--hosts {where}: {', '.join(twice)} is there twice, expected each node once")
    return tuple(hosts)
