"""The user of ssh and sshd: from /etc/passwd, or from a file of the job if the user has no name or no shell."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from cpu_train_stack.launch.mpi import ssh_user


def passwd(monkeypatch: pytest.MonkeyPatch, shell: str | None) -> None:
    """/etc/passwd with this user and a shell, or without this user."""

    def getpwuid(uid: int) -> pwd.struct_passwd:
        if shell is None:
            raise KeyError(uid)
        return pwd.struct_passwd(("me", "x", uid, 0, "", "/tmp", shell))

    monkeypatch.setattr(pwd, "getpwuid", getpwuid)


def test_a_user_with_a_name_and_a_shell_needs_no_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    passwd(monkeypatch, "/bin/bash")
    assert ssh_user.this_user(tmp_path, {}) == ssh_user.User("me")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("shell", "name"),
    [
        pytest.param(None, f"user-{os.getuid()}", id="no name"),
        pytest.param("/sbin/nologin", "me", id="no shell, as CRI-O writes it"),
        pytest.param("/bin/false", "me", id="false"),
    ],
)
def test_a_user_without_a_name_or_a_shell_gets_both_from_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, shell: str | None, name: str
) -> None:
    passwd(monkeypatch, shell)
    user = ssh_user.this_user(tmp_path, {"HOME": "/dev/shm"})
    assert user.name == name
    written = (tmp_path / "passwd").read_text()
    assert written == f"{name}:x:{os.getuid()}:{os.getgid()}::/dev/shm:/bin/sh\n"
    assert user.variables["NSS_WRAPPER_PASSWD"] == str(tmp_path / "passwd")
    assert user.variables["LD_PRELOAD"] == ssh_user.LIBRARY


@pytest.mark.parametrize("own", [{}, {"LD_PRELOAD": "liba.so:libb.so"}], ids=["none", "two"])
def test_a_rank_has_only_the_users_own_preloads(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, own: dict[str, str]
) -> None:
    passwd(monkeypatch, None)
    inherited = {**own, **ssh_user.this_user(tmp_path, {**own, "HOME": "/tmp"}).variables}
    assert inherited["LD_PRELOAD"].split(":")[0] == ssh_user.LIBRARY
    ssh_user.forget(inherited)
    assert inherited == own
