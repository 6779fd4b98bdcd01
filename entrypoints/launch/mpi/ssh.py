"""The folder of keys that both ends of a cluster's ssh are given, and the options of each end. Torch-free.

The names in the folder are OpenSSH's own, and those of a Kubernetes MPIJob's secret:

    authorized_keys         who may log in (the node's end)
    ssh_host_*_key          what a node proves itself with; without one the user's key stands in for it, as whoever
                            has that may log in to every node anyway
    id_*                    the user's key (the launcher's end)
    known_hosts             the nodes' public keys; without it each must prove itself with the user's key

The folder may be anybody's and of any mode, as mounted secrets are: ssh refuses keys that others can read, so both
ends work on copies of their own.
"""

from __future__ import annotations

import os
import pwd
import shutil
import tempfile
from pathlib import Path

from entrypoints.cli.errors import UsageError

DEFAULT_KEYS = "/run/keys"
# In the image a folder of the job's user; the local cluster mounts a tmpfs there.
PRIVATE = Path("/run/ssh")
# A peer that is silent for so long is gone: that is how a cut network is noticed.
ALIVE_SECONDS, ALIVE_COUNT = 5, 3

_HOST_KEYS = "ssh_host_*_key"
_USER_KEYS = "id_*"


def copy_keys(keys: Path) -> Path:
    """A new folder that only this user can read, with copies of the key files. Raises UsageError."""
    if not keys.is_dir():
        raise UsageError(f"--keys {keys} is not a folder, expected one with keys for ssh to mount there")
    account()
    parent = PRIVATE if os.access(PRIVATE, os.W_OK) else Path.home()
    folder = Path(tempfile.mkdtemp(prefix="keys-", dir=parent))
    try:
        for source in keys.iterdir():
            if source.is_file():  # a mounted secret has folders and links beside the files
                copy = folder / source.name
                copy.touch(mode=0o600)
                copy.write_bytes(source.read_bytes())
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise UsageError(
            f"{error.filename} cannot be read by user {os.getuid()} ({error.strerror}), expected keys that it may"
        ) from error
    return folder


def account() -> str:
    """This user's name. Raises UsageError for a user without one: ssh serves and logs in named users only."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        raise UsageError(
            f"user {os.getuid()} has no name in /etc/passwd, which ssh asks for: "
            "run as uid 1000, or mount an /etc/passwd that names this user"
        ) from None


def server_config(keys: Path, port: int) -> str:
    """sshd's configuration: one user, one key, commands only. Raises UsageError where a file is missing."""
    authorized = keys / "authorized_keys"
    if not authorized.is_file():
        raise UsageError(f"there is no {authorized.name} in the folder of keys: it says who may log in")
    host_keys = _private(keys, _HOST_KEYS) or [_user_key(keys)]
    lines = [
        f"Port {port}",
        *(f"HostKey {key}" for key in host_keys),
        f"AuthorizedKeysFile {authorized}",
        f"AllowUsers {account()}",
        "AuthenticationMethods publickey",
        "PasswordAuthentication no",
        "KbdInteractiveAuthentication no",
        "PermitRootLogin no",
        "UsePAM no",
        f"StrictModes {'yes' if only_ours(keys) else 'no'}",
        "DisableForwarding yes",
        "PermitTTY no",
        "PermitTunnel no",
        "PermitUserEnvironment no",
        "PermitUserRC no",
        "PrintMotd no",
        # A job logs in to a node a handful of times at once; a restarted launcher may do so again.
        "MaxStartups 64",
        f"ClientAliveInterval {ALIVE_SECONDS}",
        f"ClientAliveCountMax {ALIVE_COUNT}",
        "PidFile none",
        "LogLevel ERROR",
    ]
    return "\n".join(lines) + "\n"


def client_config(keys: Path, port: int) -> str:
    """ssh's configuration for every node: this key, hosts that are known, no questions. Raises UsageError."""
    key = _user_key(keys)
    known = keys / "known_hosts"
    if not known.is_file():
        public = key.with_name(key.name + ".pub")
        if not public.is_file():
            raise UsageError(
                f"neither known_hosts nor {public.name} is in the folder of keys: by them nodes prove themselves"
            )
        known.touch(mode=0o600)
        known.write_text(f"* {public.read_text(encoding='ascii')}", encoding="ascii")
    lines = [
        "Host *",
        f"Port {port}",
        f"IdentityFile {key}",
        "IdentitiesOnly yes",
        "IdentityAgent none",
        f"UserKnownHostsFile {known}",
        "GlobalKnownHostsFile /dev/null",
        "StrictHostKeyChecking yes",
        "UpdateHostKeys no",
        "BatchMode yes",
        "PreferredAuthentications publickey",
        "ConnectTimeout 10",
        f"ServerAliveInterval {ALIVE_SECONDS}",
        f"ServerAliveCountMax {ALIVE_COUNT}",
        "LogLevel ERROR",
    ]
    return "\n".join(lines) + "\n"


def only_ours(folder: Path) -> bool:
    """Whether no other user may write to `folder` or above it: what StrictModes asks for.

    A volume of Kubernetes is anybody's to write to, but in a pod all processes are this user's.
    """
    found = [path.stat() for path in (folder, *folder.resolve().parents)]
    return all(one.st_uid in (0, os.getuid()) and not one.st_mode & 0o022 for one in found)


def _user_key(keys: Path) -> Path:
    found = _private(keys, _USER_KEYS)
    if not found:
        raise UsageError(
            f"there is no {_USER_KEYS} in the folder of keys, expected the user's key, such as id_ed25519"
        )
    return found[0]


def _private(keys: Path, pattern: str) -> list[Path]:
    return sorted(path for path in keys.glob(pattern) if path.suffix != ".pub")
