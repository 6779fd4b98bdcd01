"""The ssh keys of one mpirun job: generated in memory, copied into its containers, and removed with them.

The files are those of tooling.cluster.keys. They are written to the layers of the containers only.
"""

import io
import tarfile
from collections.abc import Mapping, Sequence

from tooling.cluster.keys import USERS, pair
from tooling.hosts.job import Job, Place


def make(job: Job, places: Sequence[Place]) -> list[bytes]:
    """An archive for `docker cp` for each host, with the host's key. The first also has the user's key."""
    private, public = pair()
    hosts = [pair() for _ in places]
    known = "".join(
        f"[{place.address}]:{job.ssh_port} {key}\n" for place, (_, key) in zip(places, hosts, strict=True)
    )
    archives = []
    for index, (place, (host_key, _)) in enumerate(zip(places, hosts, strict=True)):
        files = {"ssh_host_ed25519_key": host_key, "authorized_keys": f"restrict {public}\n"}
        if index == 0:
            files |= {"id_ed25519": private, "known_hosts": known}
        archives.append(_archive(place, files))
    return archives


def _archive(place: Place, files: Mapping[str, str]) -> bytes:
    """`files` in run/keys, readable by the container's user only, and etc/passwd with that user, for ssh."""
    uid, gid = int(place.uid), int(place.gid)
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        folder = tarfile.TarInfo("run/keys")
        folder.type, folder.mode, folder.uid, folder.gid = tarfile.DIRTYPE, 0o700, uid, gid
        tar.addfile(folder)
        for name, text in files.items():
            _add(tar, f"run/keys/{name}", text, 0o600, uid, gid)
        _add(tar, "etc/passwd", USERS.format(uid=uid, gid=gid), 0o644, 0, 0)
    return archive.getvalue()


def _add(tar: tarfile.TarFile, name: str, text: str, mode: int, uid: int, gid: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode, entry.uid, entry.gid = len(text.encode()), mode, uid, gid
    tar.addfile(entry, io.BytesIO(text.encode()))
