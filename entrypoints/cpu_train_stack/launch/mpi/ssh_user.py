"""The user of ssh and sshd, and a name and a shell for a user that /etc/passwd gives none. Torch-free.

ssh requires a user with a name, and sshd starts commands with the user's shell. A container under a random user id
has neither: Docker adds nothing to /etc/passwd, and OpenShift's engine adds the user with the shell /sbin/nologin
(CRI-O, utils.GeneratePasswd). libnss_wrapper lets ssh and sshd read the user from a file of this job instead.

The alternative, an /etc/passwd that group 0 may write, is not used: every process in the container could change
every user, a read-only root file system prevents the change, and CRI-O adds no user to such a file.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path

LIBRARY = "libnss_wrapper.so"
_PRELOAD = "LD_PRELOAD"
# The library reads users from its file only if both variables are set.
_USERS, _GROUPS = "NSS_WRAPPER_PASSWD", "NSS_WRAPPER_GROUP"
_NO_SHELLS = ("nologin", "false")


@dataclass(frozen=True)
class User:
    """A user's name, and the variables with which ssh and sshd find the name and a shell."""

    name: str
    variables: Mapping[str, str] = field(default_factory=dict)


def this_user(folder: Path, environ: Mapping[str, str]) -> User:
    """The user of this process. If the user has no name or no shell, a file with both is written to `folder`."""
    uid = os.getuid()
    try:
        entry = pwd.getpwuid(uid)
        name = entry.pw_name
        if Path(entry.pw_shell).name not in _NO_SHELLS:
            return User(name)
    except KeyError:
        name = f"user-{uid}"
    file = folder / "passwd"
    file.write_text(f"{name}:x:{uid}:{os.getgid()}::{environ['HOME']}:/bin/sh\n", encoding="utf-8")
    preloads = ":".join(filter(None, (LIBRARY, environ.get(_PRELOAD))))
    return User(name, {_PRELOAD: preloads, _USERS: str(file), _GROUPS: "/etc/group"})


def forget(environ: MutableMapping[str, str]) -> None:
    """Remove the variables of a User. Ranks on the launcher's own node inherit them from mpirun."""
    for name in (_USERS, _GROUPS):
        environ.pop(name, None)
    preloads = environ.pop(_PRELOAD, "").replace(" ", ":").split(":")
    if others := [preload for preload in preloads if preload and preload != LIBRARY]:
        environ[_PRELOAD] = ":".join(others)
