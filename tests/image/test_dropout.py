"""Dropout by the image's own kernel: its numbers, its rate, its gradients; and without it."""

from __future__ import annotations

import re
from pathlib import Path

from entrypoints.dropout import VARIABLE
from tests.containers import RunInImage

SCRIPTS = Path(__file__).with_name("scripts")
MOUNT = ("--volume", f"{SCRIPTS}:/s:ro")


def test_the_kernel_does_what_dropout_has_to(run_in_image: RunInImage) -> None:
    done = run_in_image("run", "/s/dropout.py", docker_args=MOUNT)
    assert done.returncode == 0, done.stderr
    checks = re.findall(r"^def (\w+)\(\) -> None:$", (SCRIPTS / "dropout.py").read_text(), re.MULTILINE)
    assert done.stdout.split() == checks
    assert len(checks) == 9


def test_a_user_can_have_torchs_own(run_in_image: RunInImage) -> None:
    done = run_in_image("run", "/s/dropout.py", env={VARIABLE: "torch"}, docker_args=MOUNT)
    assert (done.returncode, done.stdout) == (0, "torch's own\n"), done.stderr
