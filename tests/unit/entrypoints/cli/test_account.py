"""The variables of a user without a name, a home folder or /tmp."""

from __future__ import annotations

import pytest

from cpu_train_stack.cli.account import SHARED_MEMORY, TMP, missing

RANDOM, NORMAL = 1234567, 1000


@pytest.mark.parametrize(
    ("environ", "uid", "writable", "expected"),
    [
        (
            {"HOME": "/"},
            RANDOM,
            (SHARED_MEMORY,),
            {"TMPDIR": "/dev/shm", "HOME": "/dev/shm", "USER": "user-1234567"},
        ),
        ({}, RANDOM, (TMP, SHARED_MEMORY), {"HOME": "/tmp", "USER": "user-1234567"}),
        ({"HOME": "/pvc/me", "LOGNAME": "me", "TMPDIR": "/pvc/tmp"}, RANDOM, (), {}),
        ({"HOME": "/", "TMPDIR": "/pvc/tmp"}, NORMAL, (), {"HOME": "/pvc/tmp"}),
        ({"HOME": "/home/trainer"}, NORMAL, (TMP, SHARED_MEMORY), {}),
        ({"HOME": "/"}, 0, ("/", TMP, SHARED_MEMORY), {}),
    ],
    ids=["read-only root", "OpenShift", "the user's own", "own TMPDIR", "uid 1000", "root"],
)
def test_only_missing_variables_are_added(
    environ: dict[str, str], uid: int, writable: tuple[str, ...], expected: dict[str, str]
) -> None:
    assert missing(environ, uid, lambda uid: uid != RANDOM, lambda folder: folder in writable) == expected
