"""The user and the groups of the processes in a local cluster's containers."""

import grp
import itertools
import os
import pwd
import re

_LIKE_ROOT = frozenset(
    ("root", "disk", "docker", "incus-admin", "kmem", "libvirt", "lxd", "podman", "shadow", "sudo", "wheel")
)
_NO_GROUP = 65534
# The user of the images, and the range that systemd leaves free for others (systemd.io/UIDS-GIDS).
_IMAGES_USER, _FIRST_FREE = 1000, 60578


def container_user() -> tuple[int, int]:
    """uid and gid of the nodes' processes: the caller's, who then owns the output.

    For root: those of sudo's caller, otherwise IDs that no user of this machine has, because a user with the same
    uid could read the job's secrets.
    """
    if os.geteuid() != 0:
        return os.geteuid(), _own_group()
    caller, group = os.environ.get("SUDO_UID", ""), os.environ.get("SUDO_GID", "")
    if re.fullmatch("[1-9][0-9]{0,8}", caller) and re.fullmatch("[1-9][0-9]{0,8}", group):
        return int(caller), _NO_GROUP if name_of(int(group)) in _LIKE_ROOT else int(group)
    free = next(
        uid for uid in itertools.chain((_IMAGES_USER,), itertools.count(_FIRST_FREE)) if not _has_account(uid)
    )
    return free, free


def _has_account(uid: int) -> bool:
    try:
        return bool(pwd.getpwuid(uid))
    except KeyError:
        return False


def _own_group() -> int:
    """The caller's group. If it is as powerful as root, as after `newgrp docker`: the account's or another one."""
    groups = [os.getegid(), _account_group(), *sorted(os.getgroups())]
    return next((gid for gid in groups if gid is not None and name_of(gid) not in _LIKE_ROOT), _NO_GROUP)


def _account_group() -> int | None:
    """The group in the caller's account. None if the account is unknown on this machine."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_gid
    except KeyError:
        return None


def container_groups() -> list[str]:
    """The caller's other groups, so that the nodes can read what the caller can read. For root, none.

    None of the groups whose members are as powerful as root, for which a mounted socket or device would be enough.
    """
    others = set() if os.geteuid() == 0 else {*os.getgroups(), os.getegid()} - {_own_group()}
    groups = {gid: name_of(gid) for gid in others}
    return [str(gid) for gid, name in sorted(groups.items()) if name not in _LIKE_ROOT]


def name_of(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:  # of a directory service, or none
        return ""
