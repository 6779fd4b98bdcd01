"""Dropout, and attention with dropout, with the image's kernels and without them."""

import json
from pathlib import Path

import pytest

from cpu_train_stack import contract
from cpu_train_stack.machine import cpus
from tests.containers import RunInImage
from tests.image.container_scripts import MOUNT, checks_of, printed
from tooling.checks import modelled

ISA = "ONEDNN_MAX_CPU_ISA"
# Hide instructions, so that each path runs on every machine that can take it: without bf16 instructions, attention
# in bf16 is computed in fp32; with them, their kernel computes attention without dropout too. On CPUs without
# AVX-512, all tests run the kernels with a model of it (the fixture `avx512`).
NO_BF16, NO_AMX = {ISA: "AVX512_CORE"}, {ISA: "AVX512_CORE_BF16"}
WITHOUT_DROPOUT = {"attention-without-dropout"}
with_amx = pytest.mark.skipif(cpus.read_model().bf16 != "amx_bf16", reason="this CPU has no AMX")


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        ("dropout", NO_BF16),
        ("attention", NO_BF16),
        ("surroundings", NO_AMX),
        ("transformed", NO_AMX),
        *((name, NO_AMX) for name in ("attention_bf16", "attention_joined")),
        *(
            pytest.param(name, {}, marks=with_amx, id=f"{name}-amx")
            for name in ("attention_bf16", "attention_joined")
        ),
    ],
)
def test_the_kernel_does_what_it_stands_for(
    run_in_image: RunInImage, avx512: tuple[str, ...], name: str, limit: dict[str, str]
) -> None:
    done = run_in_image("run", f"/s/{name}.py", env=limit, docker_args=(*MOUNT, *avx512))
    assert done.returncode == 0, done.stderr
    assert printed(done.stdout) == checks_of(name)


@pytest.mark.parametrize("limit", [NO_BF16, NO_AMX], ids=["fp32", "bf16"])
def test_random_cases_are_those_of_torchs_operators(
    run_in_image: RunInImage, avx512: tuple[str, ...], limit: dict[str, str]
) -> None:
    argv = ("run", "/s/differential_operators.py", "--cases", "400")
    done = run_in_image(*argv, env=limit, docker_args=(*MOUNT, *avx512))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "400 cases, 0 differences" in done.stdout


@pytest.mark.parametrize("name", ["attention_bf16", "attention_joined"])
def test_the_code_for_amx_is_right_with_a_model_of_the_instructions(
    run_in_image: RunInImage, amx_model: Path, name: str
) -> None:
    """On a CPU that seems to have AMX, so that the kernel uses tiles."""
    mounts = modelled.mounts(amx_model, amx=True)
    done = run_in_image("run", f"/s/{name}.py", docker_args=(*MOUNT, *mounts))
    assert done.returncode == 0, done.stderr
    assert "amx_bf16" in done.stderr
    assert printed(done.stdout) == checks_of(name)


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
    run_in_image: RunInImage, avx512: tuple[str, ...], variables: tuple[str, ...], left: set[str]
) -> None:
    env = {**NO_AMX, **dict.fromkeys(variables, "torch")}
    done = run_in_image("run", "/s/kernels_in_use.py", env=env, docker_args=(*MOUNT, *avx512))
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) == left


@pytest.mark.parametrize(("seconds", "left"), [(0.5, WITHOUT_DROPOUT), (2.0, set())], ids=["faster", "slower"])
def test_a_measurement_decides_without_dropout(
    run_in_image: RunInImage, avx512: tuple[str, ...], tmp_path: Path, seconds: float, left: set[str]
) -> None:
    row = {"tokens": 8, "causal": False, "dropout": 0, "ours": seconds, "torch": 1.0}
    file = tmp_path / "attention.json"
    file.write_text(json.dumps({"rows": [{**row, "trains": trains} for trains in (True, False)]}))
    mounts = (*MOUNT, *avx512, "--volume", f"{file}:/attention.json:ro")
    env = {**NO_AMX, contract.ATTENTION: "/attention.json"}
    done = run_in_image("run", "/s/kernels_in_use.py", env=env, docker_args=mounts)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) == {"dropout", "attention", *left}
