"""The identity of this checkout: part of the name of every image, container and network that the checkout creates.

Two checkouts that use the same engine never use the same name.
"""

import hashlib
import os
from pathlib import Path

from cpu_train_stack.cli import files
from tooling.basis.paths import ROOT

# The label of containers and networks.
LABEL = "cpu-train-stack.checkout"
DIGITS = 8
_MACHINE_ID = Path("/etc/machine-id")


def of(root: Path, machine_id: str) -> str:
    """Eight hex digits for the checkout in the folder `root`.

    `machine_id` is included because two machines can start jobs on the same hosts from folders of the same path.
    """
    return hashlib.sha256(f"{machine_id}:".encode() + os.fsencode(root.resolve())).hexdigest()[:DIGITS]


def machine_id(path: Path = _MACHINE_ID) -> str:
    """systemd's ID of this machine. Empty if the machine has none, as in most containers."""
    return files.text(path).strip()


IDENTITY = of(ROOT, machine_id())
