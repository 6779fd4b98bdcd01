"""The ssh keys of one mpirun job: generated in memory, copied into its containers, and removed with them.

The keys are written to the layers of the containers only.
"""

import io
import tarfile
from collections.abc import Mapping, Sequence

from tooling.cluster.keys import USERS, files
from tooling.hosts.job import Job, Place


def make(job: Job, places: Sequence[Place]) -> list[bytes]:
    """An archive for `docker cp` for each host, with the host's key. The first also has the user's key."""
    client, servers = files([place.address for place in places], job.ssh_port)
    servers[0] |= client
    return [_archive(place, own) for place, own in zip(places, servers, strict=True)]


def _archive(place: Place, own: Mapping[str, str]) -> bytes:
    """The files in run/keys, readable by the container's user only, and etc/passwd with that user, for ssh."""
    uid, gid = int(place.uid), int(place.gid)
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        folder = tarfile.TarInfo("run/keys")
        folder.type, folder.mode, folder.uid, folder.gid = tarfile.DIRTYPE, 0o700, uid, gid
        tar.addfile(folder)
        for name, text in own.items():
            _add(tar, f"run/keys/{name}", text, 0o600, uid, gid)
        _add(tar, "etc/passwd", USERS.format(uid=uid, gid=gid), 0o644, 0, 0)
    return archive.getvalue()


def _add(tar: tarfile.TarFile, name: str, text: str, mode: int, uid: int, gid: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode, entry.uid, entry.gid = len(text.encode()), mode, uid, gid
    tar.addfile(entry, io.BytesIO(text.encode()))
