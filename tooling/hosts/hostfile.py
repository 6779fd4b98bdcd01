"""The hosts of a job: mpirun's hostfile, a name a line. Pure.

node-a
admin@node-b slots=2
node-c:2              # slots too: ports, keys and jump hosts are the ssh configuration's
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tooling.basis.errors import UsageError

_LINE = re.compile(r"(?P<target>[^\s:]+)(?::(?P<short>[^\s:]*))?(?:\s+slots\s*=\s*(?P<long>\S*))?")
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_USER = re.compile(r"[A-Za-z_][A-Za-z0-9._-]*")
_EXPECTED = "expected NAME, USER@NAME, NAME:SLOTS or NAME slots=SLOTS; NAME cannot be an IPv6 address"


@dataclass(frozen=True)
class Host:
    """One line: `name` as in ssh's configuration, the user if the line has one, `slots` if the line has them."""

    name: str
    user: str | None = None
    slots: int | None = None


def read(path: Path) -> tuple[Host, ...]:
    """Raises UsageError with one line for a file that is not a hostfile."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UsageError(
            f"--hosts {path} does not exist: expected a file with a host's name on each line"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--hosts {path} cannot be read: {error}") from None
    return parse(text, str(path))


def parse(text: str, where: str) -> tuple[Host, ...]:
    """The hosts of a hostfile's text, in its order: rank 0 is on the first. Raises UsageError, one line."""
    hosts: dict[str, Host] = {}
    for number, line in enumerate(text.splitlines(), 1):
        entry = line.partition("#")[0].strip()
        if not entry:
            continue
        host = _host(entry, f"{where}, line {number}")
        if host.name in hosts:
            raise UsageError(f"{where}, line {number}: {host.name} is listed twice: list each host once")
        hosts[host.name] = host
    if not hosts:
        raise UsageError(f"{where} lists no host: expected a host's name on each line")
    return tuple(hosts.values())


def ranks(hosts: tuple[Host, ...], asked: int | None) -> int:
    """Ranks on each host: `asked`, else the slots of every line, else 1. Raises UsageError."""
    if asked is not None and asked < 1:
        raise UsageError(f"--ranks-per-node is {asked}, expected 1 or more")
    slots = {host.slots for host in hosts}
    if asked is None:
        if len(slots) > 1:
            found = ", ".join(f"{host.name} {host.slots or 'none'}" for host in hosts)
            raise UsageError(
                f"slots differ ({found}): use the same number on every line, or pass --ranks-per-node"
            )
        return slots.pop() or 1
    for host in hosts:
        if host.slots is not None and host.slots < asked:
            raise UsageError(
                f"--ranks-per-node is {asked}, but {host.name} has slots={host.slots}: "
                "lower --ranks-per-node, or raise slots"
            )
    return asked


def _host(entry: str, where: str) -> Host:
    found = _LINE.fullmatch(entry)
    user, _, name = found["target"].rpartition("@") if found else ("", "", "")
    slots = [text for text in (found["short"], found["long"]) if text is not None] if found else []
    user_is_fine = _USER.fullmatch(user) or (found and "@" not in found["target"])
    if not found or not _NAME.fullmatch(name) or not user_is_fine or len(slots) > 1:
        raise UsageError(f"{where}: found {entry!r}, {_EXPECTED}")
    if slots and not re.fullmatch(r"[1-9][0-9]{0,3}", slots[0]):
        raise UsageError(f"{where}: slots is {slots[0]!r}, expected a number of 1 or more")
    return Host(name, user or None, int(slots[0]) if slots else None)
