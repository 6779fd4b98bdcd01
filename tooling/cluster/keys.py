"""The ssh keys of one mpirun cluster: a user key, and a host key for every node. Deleted with the cluster.

The image's ssh-keygen generates the keys in a container without a network, so the host needs no OpenSSH.
entrypoints/launch/mpi/ssh.py reads the folder: node-N/ is mounted in node N, launcher/ in the launcher.
"""

import os
import shutil
import subprocess
from pathlib import Path

from entrypoints import contract
from tooling.basis.errors import UsageError
from tooling.basis.say import last_line
from tooling.cluster.compose import LABELS, LAUNCHER, ClusterSpec, container_user

# Each argument is the path of a private key in the folder.
_GENERATE = 'cd /run/keys && for key; do ssh-keygen -q -t ed25519 -N "" -C "" -f "$key" || exit 1; done'
USERS = """\
root:x:0:0::/root:/usr/sbin/nologin
trainer:x:{uid}:{gid}::/tmp:/bin/sh
"""


def generate(spec: ClusterSpec, folder: Path) -> None:
    """Fill `folder`, and give it to the nodes' user. Raises UsageError if ssh-keygen fails."""
    remove(folder)
    services = [*spec.node_names, LAUNCHER]
    for path in (folder, *(folder / name for name in services)):
        path.mkdir(mode=0o700, parents=True)
    _give_to_nodes(folder)
    host_keys = {name: folder / name / "ssh_host_ed25519_key" for name in spec.node_names}
    user_key = folder / LAUNCHER / "id_ed25519"
    _run_ssh_keygen(spec, folder, [*host_keys.values(), user_key])
    # "restrict": no forwarding and no terminal, even if the server allows them.
    authorized = f"restrict {_public(user_key)}"
    for name in spec.node_names:
        (folder / name / "authorized_keys").write_text(authorized, encoding="ascii")
    known = [f"[{name}]:{contract.SSH_PORT} {_public(key)}" for name, key in host_keys.items()]
    (folder / LAUNCHER / "known_hosts").write_text("".join(known), encoding="ascii")
    # sshd needs a user name. The nodes' user is the caller, whom no image knows.
    uid, gid = container_user()
    (folder / "passwd").write_text(USERS.format(uid=uid, gid=gid), encoding="ascii")
    _give_to_nodes(folder)


def remove(folder: Path) -> None:
    """Delete a cluster's keys, if they exist."""
    if folder.is_dir():
        shutil.rmtree(folder)


def _run_ssh_keygen(spec: ClusterSpec, folder: Path, keys: list[Path]) -> None:
    argv = ["docker", "run", "--rm", "--pull=never", f"--name={spec.project}-keys", "--network=none"]
    argv += [f"--label={name}={value}" for name, value in LABELS.items()]
    argv += ["--cap-drop=ALL", "--security-opt=no-new-privileges", "--user={}:{}".format(*container_user())]
    argv += [f"--mount=type=bind,source={folder},target=/run/keys", "--entrypoint=sh", spec.image]
    argv += ["-c", _GENERATE, "sh", *(str(key.relative_to(folder)) for key in keys)]
    result = subprocess.run(argv, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise UsageError(f"cannot generate ssh keys in a container of {spec.image}: {last_line(result.stderr)}")


def _public(key: Path) -> str:
    return key.with_name(f"{key.name}.pub").read_text(encoding="ascii")


def _give_to_nodes(folder: Path) -> None:
    """ssh requires that a private key belongs to its user, which is not the caller if the caller is root."""
    if os.geteuid() == 0:
        for path in (folder, *folder.rglob("*")):
            os.chown(path, *container_user())
