"""The output of a rank."""

from __future__ import annotations

import io

from cpu_train_stack.train.loop import console


def test_every_line_of_another_rank_has_its_number_as_prefix() -> None:
    below = io.StringIO()
    stream = console.PrefixedStream(below, "[rank 3] ")
    for text in ("one\ntwo", " more\n", "", "three\n"):
        stream.write(text)
    assert below.getvalue() == "[rank 3] one\n[rank 3] two more\n[rank 3] three\n"


def test_bf16_causes_a_warning_only_if_it_is_emulated() -> None:
    assert console.bf16_warning(["avx512_bf16", "amx_bf16"]) is None
    assert "this CPU has no bf16 instructions" in str(console.bf16_warning(["emulated"]))
    mixed = str(console.bf16_warning(["amx_bf16", "emulated"]))
    assert "rank 1 have" in mixed
    assert "no faster" in mixed
