"""Dropout, and attention with dropout, with the image's kernels and without them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from entrypoints import contract
from entrypoints.machine import cpus
from entrypoints.machine.cpus import EMULATED
from tests.containers import RunInImage

SCRIPTS = Path(__file__).with_name("scripts")
MOUNT = ("--volume", f"{SCRIPTS}:/s:ro")
ISA = "ONEDNN_MAX_CPU_ISA"
# Hide instructions, so that each path runs on every machine that can take it: without bf16 instructions, attention
# in bf16 is computed in fp32; with them, their kernel computes attention without dropout too.
NO_BF16, NO_AMX = {ISA: "AVX512_CORE"}, {ISA: "AVX512_CORE_BF16"}
WITHOUT_DROPOUT = {"attention-without-dropout"}
with_instructions = pytest.mark.skipif(
    cpus.read_model().bf16 == EMULATED,
    reason="this CPU has no bf16 instructions: the kernel for them cannot run on it",
)

with_amx = pytest.mark.skipif(cpus.read_model().bf16 != "amx_bf16", reason="this CPU has no AMX")


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        ("dropout", NO_BF16),
        ("attention", NO_BF16),
        *(
            pytest.param(name, limit, marks=mark, id=f"{name}-{instructions}")
            for name in ("attention_bf16", "attention_joined")
            for limit, mark, instructions in ((NO_AMX, with_instructions, "avx512"), ({}, with_amx, "amx"))
        ),
    ],
)
def test_the_kernel_does_what_it_stands_for(run_in_image: RunInImage, name: str, limit: dict[str, str]) -> None:
    done = run_in_image("run", f"/s/{name}.py", env=limit, docker_args=MOUNT)
    assert done.returncode == 0, done.stderr
    checks = re.findall(r"^def (\w+)\(\) -> None:$", (SCRIPTS / f"{name}.py").read_text(), re.MULTILINE)
    assert checks
    assert sorted(done.stdout.split()) == sorted(checks)


@pytest.mark.parametrize(
    ("variables", "left"),
    [
        ((), {"dropout", "attention", *WITHOUT_DROPOUT}),
        ((contract.DROPOUT_KERNEL,), {"attention", *WITHOUT_DROPOUT}),
        ((contract.ATTENTION_KERNEL,), {"dropout"}),
    ],
)
def test_a_variable_selects_torchs_kernels(
    run_in_image: RunInImage, variables: tuple[str, ...], left: set[str]
) -> None:
    env = {**NO_AMX, **dict.fromkeys(variables, "torch")}
    done = run_in_image("run", "/s/kernels_in_use.py", env=env, docker_args=MOUNT)
    assert done.returncode == 0, done.stderr
    if cpus.read_model().bf16 == EMULATED:
        left = left - WITHOUT_DROPOUT
    assert set(done.stdout.split()) == left


@pytest.mark.parametrize(("seconds", "left"), [(0.5, WITHOUT_DROPOUT), (2.0, set())], ids=["faster", "slower"])
def test_a_measurement_decides_without_dropout(
    run_in_image: RunInImage, tmp_path: Path, seconds: float, left: set[str]
) -> None:
    row = {"tokens": 8, "causal": False, "dropout": 0, "ours": seconds, "torch": 1.0}
    file = tmp_path / "attention.json"
    file.write_text(json.dumps({"rows": [{**row, "trains": trains} for trains in (True, False)]}))
    mounts = (*MOUNT, "--volume", f"{file}:/attention.json:ro")
    env = {**NO_AMX, contract.ATTENTION: "/attention.json"}
    done = run_in_image("run", "/s/kernels_in_use.py", env=env, docker_args=mounts)
    assert done.returncode == 0, done.stderr
    expected = left if cpus.read_model().bf16 != EMULATED else set()
    assert set(done.stdout.split()) == {"dropout", "attention", *expected}
