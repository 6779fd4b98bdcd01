"""Dropout, and attention with it, by the image's own kernels; and without them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from entrypoints import cpuinfo
from entrypoints.dropout import VARIABLE
from entrypoints.host import EMULATED
from tests.containers import RunInImage

SCRIPTS = Path(__file__).with_name("scripts")
MOUNT = ("--volume", f"{SCRIPTS}:/s:ro")
# oneDNN is kept from bf16 instructions, so that attention in bf16 is taken over on every machine.
LIMITED = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}
with_instructions = pytest.mark.skipif(
    cpuinfo.read().bf16 == EMULATED,
    reason="this CPU has no bf16 instructions: the kernel for them cannot run on it",
)
NAMES = ("dropout", "attention", pytest.param("attention_bf16", marks=with_instructions))


@pytest.mark.parametrize("name", NAMES)
def test_the_kernel_does_what_it_stands_for(run_in_image: RunInImage, name: str) -> None:
    env = {} if name == "attention_bf16" else LIMITED
    done = run_in_image("run", f"/s/{name}.py", env=env, docker_args=MOUNT)
    assert done.returncode == 0, done.stderr
    checks = re.findall(r"^def (\w+)\(\) -> None:$", (SCRIPTS / f"{name}.py").read_text(), re.MULTILINE)
    assert checks
    assert done.stdout.split() == checks


@pytest.mark.parametrize("name", ["dropout", "attention", "attention_bf16"])
def test_a_user_can_have_torchs_own(run_in_image: RunInImage, name: str) -> None:
    done = run_in_image("run", f"/s/{name}.py", env={VARIABLE: "torch"}, docker_args=MOUNT)
    assert (done.returncode, done.stdout) == (0, "torch's own\n"), done.stderr
