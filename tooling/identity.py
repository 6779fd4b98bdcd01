"""The identity of this checkout. It is in the names of everything that the checkout creates in an engine.

Two checkouts that use one engine, whether they belong to one user or to several, never share a name.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from tooling.paths import ROOT

# On containers and networks.
LABEL = "cpu-train-stack.checkout"
DIGITS = 8
_MACHINE_ID = Path("/etc/machine-id")


def of(root: Path, machine_id: str) -> str:
    """Eight hex digits for the checkout in the folder `root`.

    The machine counts because two machines can start jobs on the same hosts from folders of the same path.
    """
    return hashlib.sha256(f"{machine_id}:{root.resolve()}".encode()).hexdigest()[:DIGITS]


def machine_id(path: Path = _MACHINE_ID) -> str:
    """systemd's ID of this machine, empty where there is none (in most containers)."""
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return ""


IDENTITY = of(ROOT, machine_id())
