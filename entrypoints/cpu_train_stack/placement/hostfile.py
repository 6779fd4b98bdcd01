"""mpirun's hostfile, for `mpi-launch` in the image and for `./inv launch`.

node-a                # one host per line
node-b:2              # slots
node-c slots=2 max-slots=4   # slots, too; other name=value options are ignored
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cpu_train_stack.cli.errors import UsageError

_LINE = re.compile(
    r"((?P<user>[A-Za-z_][A-Za-z0-9._-]*)@)?(?P<name>[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)"
    r"(:(?P<short>[^\s:=]*))?(?P<options>(\s+[\w-]+\s*=\s*\S*)*)"
)
_SLOTS = re.compile(r"\sslots\s*=\s*(\S*)")


@dataclass(frozen=True)
class HostfileEntry:
    """One line. `user` and `slots` are None if the line has none."""

    name: str
    user: str | None = None
    slots: int | None = None


def parse(lines: Iterable[str], unit: str, users: bool) -> tuple[HostfileEntry, ...]:
    """The hosts in the order of the lines. Raises ValueError, one line with all mistakes.

    `unit`: the name of an entry in messages. `users`: USER@NAME is allowed.
    """
    hosts: dict[str, HostfileEntry] = {}
    mistakes = []
    for number, line in enumerate(lines, 1):
        entry = line.partition("#")[0].strip()
        if not entry:
            continue
        try:
            host = _host(entry, users)
            if host.name in hosts:
                raise ValueError(f"{host.name} is listed twice: list each host once")
            hosts[host.name] = host
        except ValueError as error:
            mistakes.append(f"{unit} {number}: {error}")
    if mistakes:
        raise ValueError("; ".join(mistakes))
    if not hosts:
        raise ValueError(f"found no host, expected a host's name as each {unit}")
    return tuple(hosts.values())


def read(text: str) -> tuple[str, ...]:
    """The names of `mpi-launch --hosts`: of the hosts in a hostfile, or node-0,node-1. Raises UsageError.

    Slots are ignored: every node gets the same number of ranks.
    """
    path = Path(text)
    if "/" in text and not _is_file(path):
        raise UsageError(f"--hosts {text} is not a file, expected a hostfile or names like node-0,node-1")
    try:
        if _is_file(path):
            hosts = parse(path.read_text(encoding="utf-8").splitlines(), "line", users=False)
        else:
            hosts = parse(text.split(","), "name", users=False)
    except ValueError as error:
        raise UsageError(f"--hosts {text}: {error}") from None
    except OSError as error:
        raise UsageError(
            f"--hosts {text} cannot be read ({error.strerror}), expected a hostfile that user {os.getuid()} can "
            "read: change the file's owner or mode"
        ) from None
    return tuple(host.name for host in hosts)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a list of many hosts is too long for a file's name
        return False


def _host(entry: str, users: bool) -> HostfileEntry:
    found = _LINE.fullmatch(entry)
    slots = _SLOTS.findall(found["options"]) if found else []
    if found and found["short"] is not None:
        slots.append(found["short"])
    if not found or len(slots) > 1 or (found["user"] and not users):
        names = "NAME, USER@NAME" if users else "NAME"
        raise ValueError(
            f"found {entry!r}, expected {names}, NAME:SLOTS or NAME slots=SLOTS, where NAME is a host name or an "
            "IPv4 address"
        )
    if slots and not re.fullmatch("[1-9][0-9]{0,3}", slots[0]):
        raise ValueError(f"slots is {slots[0]!r}, expected a number of 1 or more")
    return HostfileEntry(found["name"], found["user"], int(slots[0]) if slots else None)
