"""The CPU's model and bf16 instructions, and the kernel's CPU lists."""

from __future__ import annotations

from pathlib import Path

import pytest

from cpu_train_stack.machine import cpus
from tests.unit.entrypoints.machines.layout import Machine, lay_out


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("avx512_bf16 amx_tile amx_bf16", "amx_bf16"),
        ("avx512f avx512_bf16", "avx512_bf16"),
        ("avx2 avx512f", "emulated"),
        ("not_avx512_bf16_either", "emulated"),
    ],
)
def test_bf16_is_the_best_instruction_set_or_emulated(tmp_path: Path, flags: str, expected: str) -> None:
    assert cpus.read_model(lay_out(Machine(((1,),), flags=flags), tmp_path)).bf16 == expected


def test_features_are_those_that_training_depends_on(tmp_path: Path) -> None:
    found = cpus.read_model(lay_out(Machine(((1,),), flags="sse avx2 amx_tile amx_bf16 avx512f"), tmp_path))
    assert found.features == ("amx_tile", "amx_bf16", "avx512f", "avx2")
    assert found.machine == "x86_64"


def test_only_the_first_cpus_entry_is_read(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text(
        "model name\t: A\nflags\t: avx2\n\nmodel name\t: B\nflags\t: amx_bf16\n"
    )
    assert cpus.read_model(tmp_path) == cpus.Cpu("x86_64", "A", ("avx2",), "emulated")


@pytest.mark.parametrize(("text", "found"), [("", set()), ("3", {3}), ("0-2,8\n", {0, 1, 2, 8})])
def test_cpu_lists_are_parsed(text: str, found: set[int]) -> None:
    assert cpus.parse_cpu_list(text) == found
    assert cpus.format_cpu_list(frozenset(found)) == text.strip()


@pytest.mark.parametrize(
    ("bf16", "cap", "expected"),
    [
        ("amx_bf16", "", "amx_bf16"),
        ("amx_bf16", "avx512_core_bf16", "avx512_bf16"),
        ("amx_bf16", "AVX512_CORE_AMX", "amx_bf16"),
        ("avx512_bf16", "AVX2", "emulated"),
        ("emulated", "AVX512_CORE_BF16", "emulated"),
    ],
)
def test_onednn_max_cpu_isa_limits_bf16(bf16: str, cap: str, expected: str) -> None:
    assert cpus.bf16_of({"ONEDNN_MAX_CPU_ISA": cap}, cpus.Cpu("x86_64", "", (), bf16)) == expected
