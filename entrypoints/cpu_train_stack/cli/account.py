"""The variables that a user without a name, a home folder and /tmp needs, as under a random user id. Torch-free.

OpenShift runs images under such an id, and a container with a read-only root file system may have no /tmp. There,
Python's tempfile and getpass, and the caches of torch and Hugging Face, fail without these variables.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable, Mapping

TMP, SHARED_MEMORY = "/tmp", "/dev/shm"  # noqa: S108 - paths in the container


def _writable(folder: str) -> bool:
    return os.access(folder, os.W_OK | os.X_OK)


def named(uid: int) -> bool:
    """Whether /etc/passwd has the user."""
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True


def missing(
    environ: Mapping[str, str], uid: int, named: Callable[[int], bool], writable: Callable[[str], bool]
) -> dict[str, str]:
    """The variables to add. A user's own value stays, except HOME=/, which engines set for unnamed users."""
    found = {}
    if "TMPDIR" not in environ and not writable(TMP) and writable(SHARED_MEMORY):
        found["TMPDIR"] = SHARED_MEMORY
    if environ.get("HOME", "/") == "/" and not writable("/"):
        found["HOME"] = found.get("TMPDIR") or environ.get("TMPDIR", TMP)
    if "USER" not in environ and "LOGNAME" not in environ and not named(uid):
        found["USER"] = f"user-{uid}"
    return found


def complete() -> None:
    """Add the missing variables to this process."""
    os.environ.update(missing(os.environ, os.getuid(), named, _writable))
