"""When bf16 products are computed in float32."""

from __future__ import annotations

import pytest

from cpu_train_stack import contract
from cpu_train_stack.operators import bf16_products


@pytest.mark.parametrize(
    ("bf16", "users", "expected"),
    [
        ("emulated", None, True),
        ("emulated", "widened", True),
        ("emulated", "emulated", False),
        ("avx512_bf16", None, False),
        ("amx_bf16", None, False),
    ],
)
def test_products_are_widened_only_without_instructions_and_unless_the_user_turns_it_off(
    monkeypatch: pytest.MonkeyPatch, bf16: str, users: str | None, expected: bool
) -> None:
    monkeypatch.delenv(contract.BF16_PRODUCTS, raising=False)
    if users:
        monkeypatch.setenv(contract.BF16_PRODUCTS, users)
    assert bf16_products.needed(bf16) is expected
