"""The ssh keys of one mpirun job: a user key, and a host key for every node. Deleted with the job.

cpu_train_stack/launch/mpi/ssh.py reads them in /run/keys. On a local cluster, node-N/ is mounted in node N, and
launcher/ in the launcher. On hosts, the keys are only in the layers of the containers.
"""

import io
import os
import shutil
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from cpu_train_stack import contract
from tooling.cluster import users
from tooling.cluster.compose import LAUNCHER, ClusterSpec

USERS = """\
root:x:0:0::/root:/usr/sbin/nologin
trainer:x:{uid}:{gid}::/tmp:/bin/sh
"""


def pair() -> tuple[str, str]:
    """A private and a public ed25519 key in OpenSSH's format."""
    # Here, because most commands make no keys.
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return private.decode("ascii"), public.decode("ascii")


def files(hosts: Sequence[str], port: int) -> tuple[dict[str, str], list[dict[str, str]]]:
    """New keys, as files by name: those of mpirun, and those of the sshd on each of `hosts`."""
    user, user_public = pair()
    known, servers = "", []
    for host in hosts:
        key, public = pair()
        known += f"[{host}]:{port} {public}\n"
        # "restrict": no forwarding and no terminal, even if the server allows them.
        servers.append({"ssh_host_ed25519_key": key, "authorized_keys": f"restrict {user_public}\n"})
    return {"id_ed25519": user, "known_hosts": known}, servers


def archive(own: Mapping[str, str], uid: int, gid: int) -> bytes:
    """For `docker cp`: run/keys, readable for its user only, and etc/passwd with that user, for ssh."""
    result = io.BytesIO()
    with tarfile.open(fileobj=result, mode="w") as tar:
        folder = tarfile.TarInfo("run/keys")
        folder.type, folder.mode, folder.uid, folder.gid = tarfile.DIRTYPE, 0o700, uid, gid
        tar.addfile(folder)
        owned = [(f"run/keys/{name}", text, 0o600, uid, gid) for name, text in own.items()]
        for name, text, mode, user, group in [*owned, ("etc/passwd", USERS.format(uid=uid, gid=gid), 0o644, 0, 0)]:
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode, entry.uid, entry.gid = len(text.encode()), mode, user, group
            tar.addfile(entry, io.BytesIO(text.encode()))
    return result.getvalue()


def generate(spec: ClusterSpec, folder: Path) -> None:
    """Fill `folder`, and give it to the nodes' user."""
    remove(folder)
    client, servers = files(spec.node_names, contract.SSH_PORT)
    folder.mkdir(mode=0o700, parents=True)
    # sshd needs a user name. The nodes' user is the caller, whom no image knows.
    uid, gid = users.container_user()
    (folder / "passwd").touch(mode=0o644)
    (folder / "passwd").write_text(USERS.format(uid=uid, gid=gid), encoding="ascii")
    for service, own in zip([LAUNCHER, *spec.node_names], [client, *servers], strict=True):
        (folder / service).mkdir(mode=0o700)
        for name, text in own.items():
            path = folder / service / name
            path.touch(mode=0o600)
            path.write_text(text, encoding="ascii")
    if os.geteuid() == 0:  # ssh requires that a private key belongs to its user
        for path in (folder, *folder.rglob("*")):
            os.chown(path, uid, gid)


def remove(folder: Path) -> None:
    """Delete a cluster's keys, if they exist."""
    if folder.is_dir():
        shutil.rmtree(folder)
