"""ssh between the launcher and the nodes: keys, configuration of both ends, and the nodes' `sshd`. Torch-free.

    sshd [--keys FOLDER] [--port N]        # in a node's container: mpi-launch elsewhere may start ranks here

Both ends read their keys from a mounted folder. The file names are OpenSSH's own, as in a Kubernetes MPIJob's
secret:

    authorized_keys         who may log in (the node's end)
    ssh_host_*_key          proves the node's identity; the default is the user's key, whose owner may log in to
                            every node anyway
    id_*                    the user's key (the launcher's end)
    known_hosts             the nodes' public keys; without this file, each node must have the user's key

A mounted folder may have any owner and mode. ssh rejects keys that other users can read, so both ends use private
copies. No key is in the image.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from cpu_train_stack import contract
from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.options import option, parse_options, port_number
from cpu_train_stack.launch.mpi import server, ssh_user
from cpu_train_stack.machine.last_checkpoint import grace_seconds

SERVER = "/usr/sbin/sshd"
PRIVATE = Path(contract.SSH_PRIVATE)
# ssh sends a message every ALIVE_SECONDS; a peer that misses ALIVE_COUNT of them is lost. This detects a cut
# network.
ALIVE_SECONDS, ALIVE_COUNT = 5, 3

_HOST_KEYS = "ssh_host_*_key"
_USER_KEYS = "id_*"
_ENDS = "node-ends"


@dataclass(frozen=True)
class Server:
    """The command line of `sshd`."""

    keys: Path = option(
        "--keys", "mounted folder with authorized_keys and a host key (default: %(default)s)",
        Path(contract.SSH_KEYS), type=Path, metavar="FOLDER",
    )  # fmt: skip
    port: int = option(
        "--port", "port to listen on (default: %(default)s)", contract.SSH_PORT, type=port_number, metavar="PORT"
    )


def main(argv: list[str]) -> int:
    """Run OpenSSH's server. Raises UsageError if a key is missing, or if the user is root."""
    options = parse_options(Server, argv, "sshd", "Accept ranks from mpi-launch in another container, over ssh.")
    if os.getuid() == 0:
        raise UsageError("sshd: running as root, expected another user: start the container without --user")
    grace = grace_seconds(os.environ)
    folder = copy_keys(options.keys)
    config = folder / "sshd_config"
    user = ssh_user.this_user(folder, os.environ)
    config.write_text(server_config(folder, options.port, user.name), encoding="utf-8")
    argv = [SERVER, "-D", "-e", "-f", str(config)]
    return server.serve(argv, {**os.environ, **user.variables}, folder / _ENDS, grace)


def copy_keys(keys: Path) -> Path:
    """A new folder that only this user can read, with copies of the key files. Raises UsageError."""
    if not keys.is_dir():
        raise UsageError(f"--keys {keys} is not a folder, expected one with keys: mount the ssh keys there")
    folder = _private_folder()
    try:
        for source in keys.iterdir():
            if source.is_file():  # a mounted secret has other folders and links too
                copy = folder / source.name
                copy.touch(mode=0o600)
                copy.write_bytes(source.read_bytes())
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise UsageError(
            f"user {os.getuid()} cannot read {error.filename} ({error.strerror}): change the file's owner or mode"
        ) from error
    return folder


def _private_folder() -> Path:
    """A new folder in the first of PRIVATE, the home folder and the one for temporary files that is writable."""
    parent = next((folder for folder in (PRIVATE, Path.home()) if os.access(folder, os.W_OK)), None)
    try:
        return Path(tempfile.mkdtemp(prefix="keys-", dir=parent))
    except OSError as error:
        raise UsageError(
            f"user {os.getuid()} cannot write to {PRIVATE}, {Path.home()} or a folder for temporary files "
            f"({error.strerror}), expected one of them to be writable, for copies of the keys: mount a tmpfs at "
            f"{PRIVATE}"
        ) from error


def server_config(keys: Path, port: int, user: str) -> str:
    """sshd's configuration: one user, one key, commands only. Raises UsageError if a file is missing."""
    authorized = keys / "authorized_keys"
    if not authorized.is_file():
        raise UsageError(f"no {authorized.name} in the folder of keys: add the public key that may log in")
    host_keys = _private(keys, _HOST_KEYS) or [_user_key(keys)]
    lines = [
        f"Port {port}",
        *(f"HostKey {key}" for key in host_keys),
        f"AuthorizedKeysFile {authorized}",
        f"AllowUsers {user}",
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
        f"SetEnv {contract.NODE_ENDS}={keys / _ENDS}",
        "PrintMotd no",
        # A job opens several sessions to a node at once, and a restarted launcher opens them again.
        "MaxStartups 64",
        f"ClientAliveInterval {ALIVE_SECONDS}",
        f"ClientAliveCountMax {ALIVE_COUNT}",
        "PidFile none",
        "LogLevel ERROR",
    ]
    return "\n".join(lines) + "\n"


def client_config(keys: Path, port: int) -> str:
    """ssh's configuration: this key, known hosts, no prompts. Raises UsageError if a file is missing."""
    key = _user_key(keys)
    known = keys / "known_hosts"
    if not known.is_file():
        public = key.with_name(key.name + ".pub")
        if not public.is_file():
            raise UsageError(
                f"neither known_hosts nor {public.name} in the folder of keys: add one, to verify the nodes"
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
    """Whether no other user may write to `folder` or its parents, as StrictModes requires.

    Every user may write to a Kubernetes volume, but all processes in the pod belong to this user.
    """
    found = [path.stat() for path in (folder, *folder.resolve().parents)]
    return all(status.st_uid in (0, os.getuid()) and not status.st_mode & 0o022 for status in found)


def _user_key(keys: Path) -> Path:
    found = _private(keys, _USER_KEYS)
    if not found:
        raise UsageError(
            f"no {_USER_KEYS} in the folder of keys, expected the user's key, such as id_ed25519: add it"
        )
    return found[0]


def _private(keys: Path, pattern: str) -> list[Path]:
    return sorted(path for path in keys.glob(pattern) if path.suffix != ".pub")
