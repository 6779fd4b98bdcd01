"""`bench` on old torch: other names of functions, and no fused AdamW on CPUs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from tests.unit.entrypoints.bench import without_torch

NAMES = {
    "1.12": ("_all_gather_base", "_reduce_scatter_base"),
    "2.0": ("all_gather_into_tensor", "reduce_scatter_tensor"),
    "2.13": ("all_gather_single", "reduce_scatter_single"),
}


@pytest.mark.parametrize("version", NAMES)
def test_collectives_have_the_names_of_this_torch(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    older = [name for names in list(NAMES.values())[: list(NAMES).index(version) + 1] for name in names]
    dist = SimpleNamespace(**{name: name for name in older}, ProcessGroup=object)
    measure = without_torch.load(monkeypatch, "measure", torch_distributed=dist)
    assert (measure._all_gather, measure._reduce_scatter) == NAMES[version]


@pytest.mark.parametrize(
    ("message", "supported"),
    [
        ("Invalid scalar type", False),  # gloo of torch 1.13
        ("gloo does not support reduce_scatter", False),
        ("Connection closed by peer", None),
    ],
)
def test_a_call_that_a_backend_does_not_support_is_no_error(
    monkeypatch: pytest.MonkeyPatch, message: str, supported: bool | None
) -> None:
    def run(_group: object) -> None:
        raise RuntimeError(message)

    measure = without_torch.load(monkeypatch, "measure")
    monkeypatch.setattr(measure, "input_of", lambda *_: 1)
    call = measure.Call(SimpleNamespace(collective="all_reduce"), run, MagicMock(), MagicMock(), MagicMock())
    if supported is None:
        with pytest.raises(RuntimeError, match=message):
            call.check(object())
    else:
        assert call.check(object()) is supported


def test_the_size_of_a_tensor_does_not_need_nbytes(monkeypatch: pytest.MonkeyPatch) -> None:
    measure = without_torch.load(monkeypatch, "measure")
    small, large = (SimpleNamespace(numel=lambda n=n: n, element_size=lambda: 4) for n in (2, 3))
    assert measure.Call(None, None, small, large, None).bytes == 12


@pytest.mark.parametrize("error", [TypeError, RuntimeError], ids=["1.13", "2.0"])
def test_adamw_is_fused_where_torch_can(monkeypatch: pytest.MonkeyPatch, error: type[Exception]) -> None:
    phases = without_torch.load(monkeypatch, "phases")
    found: list[Any] = []

    def adamw(parameters: Any, **options: Any) -> Any:
        parameters = list(parameters)
        if options.pop("fused", False):
            raise error
        found.append((parameters, options))

    monkeypatch.setattr(phases.torch.optim, "AdamW", adamw)
    phases._adamw(iter([1, 2]))
    assert found == [([1, 2], {"lr": 1e-4})]
