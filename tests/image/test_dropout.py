"""Dropout, and attention with dropout, with the image's kernels and without them."""

import json
import re
from pathlib import Path

import pytest

from cpu_train_stack import contract
from cpu_train_stack.machine import cpus
from cpu_train_stack.machine.cpus import EMULATED
from tests.containers import RunInImage
from tests.image.container_scripts import MOUNT, checks_of, printed

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
        pytest.param("surroundings", NO_AMX, marks=with_instructions),
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
    assert printed(done.stdout) == checks_of(name)


@with_instructions
@pytest.mark.parametrize("name", ["attention_bf16", "attention_joined"])
def test_the_code_for_amx_is_right_with_a_model_of_the_instructions(
    run_in_image: RunInImage, amx_model: Path, tmp_path: Path, name: str
) -> None:
    """On a CPU that seems to have AMX, so that the kernel uses tiles."""
    done = run_in_image("run", f"/s/{name}.py", docker_args=(*MOUNT, *as_with_amx(amx_model, tmp_path)))
    assert done.returncode == 0, done.stderr
    assert "amx_bf16" in done.stderr
    assert printed(done.stdout) == checks_of(name)


def as_with_amx(library: Path, folder: Path) -> tuple[str, ...]:
    """The arguments of Docker that mount the library, and list AMX in /proc/cpuinfo."""
    cpuinfo = Path("/proc/cpuinfo").read_text()
    seen = folder / "cpuinfo"
    seen.write_text(re.sub(r"^flags\t.*$", r"\g<0> amx_tile amx_bf16", cpuinfo, flags=re.MULTILINE))
    kernels = "/opt/venv/lib/python3.11/site-packages/cpu_train_stack.libs/libkernels.so"
    return "--volume", f"{library}:{kernels}:ro", "--volume", f"{seen}:/proc/cpuinfo:ro"


@with_amx
def test_amx_gives_the_bits_of_the_model(run_in_image: RunInImage, amx_model: Path) -> None:
    mount = ("--volume", f"{amx_model}:/model/libkernels.so:ro")
    done = run_in_image("run", "/s/attention_tiles.py", "/model/libkernels.so", docker_args=(*MOUNT, *mount))
    assert done.returncode == 0, done.stderr
    assert printed(done.stdout) == checks_of("attention_tiles")


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
