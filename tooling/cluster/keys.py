"""The ssh keys of one mpirun cluster: a user key, and a host key for every node. Deleted with the cluster.

entrypoints/launch/mpi/ssh.py reads the folder: node-N/ is mounted in node N, launcher/ in the launcher.
"""

import os
import shutil
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from entrypoints import contract
from tooling.cluster.compose import LAUNCHER, ClusterSpec, container_user

USERS = """\
root:x:0:0::/root:/usr/sbin/nologin
trainer:x:{uid}:{gid}::/tmp:/bin/sh
"""


def pair() -> tuple[str, str]:
    """A private and a public ed25519 key in OpenSSH's format."""
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return private.decode("ascii"), public.decode("ascii")


def generate(spec: ClusterSpec, folder: Path) -> None:
    """Fill `folder`, and give it to the nodes' user."""
    remove(folder)
    user, user_public = pair()
    files = {f"{LAUNCHER}/id_ed25519": user}
    known = ""
    for name in spec.node_names:
        host, host_public = pair()
        known += f"[{name}]:{contract.SSH_PORT} {host_public}\n"
        # "restrict": no forwarding and no terminal, even if the server allows them.
        files |= {f"{name}/ssh_host_ed25519_key": host, f"{name}/authorized_keys": f"restrict {user_public}\n"}
    # sshd needs a user name. The nodes' user is the caller, whom no image knows.
    uid, gid = container_user()
    files |= {f"{LAUNCHER}/known_hosts": known, "passwd": USERS.format(uid=uid, gid=gid)}
    folder.mkdir(mode=0o700, parents=True)
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(mode=0o700, exist_ok=True)
        path.touch(mode=0o644 if name == "passwd" else 0o600)
        path.write_text(text, encoding="ascii")
    if os.geteuid() == 0:  # ssh requires that a private key belongs to its user
        for path in (folder, *folder.rglob("*")):
            os.chown(path, uid, gid)


def remove(folder: Path) -> None:
    """Delete a cluster's keys, if they exist."""
    if folder.is_dir():
        shutil.rmtree(folder)
