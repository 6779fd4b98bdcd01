"""Names that libraries removed, in modules that stand for theirs."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from cpu_train_stack.adapt.adaptation import Situation
from cpu_train_stack.compat import old_names


def named(adaptation: str) -> Situation:
    return Situation((), {}, "gloo").named(adaptation)


def test_a_push_with_a_removed_name_raises_an_error_with_the_fix() -> None:
    module: Any = ModuleType("huggingface_hub")
    old_names.add(named("hub-repository"), module)
    with pytest.raises(RuntimeError, match="remove --push_to_hub, and upload the folder"):
        module.Repository("output", clone_from="name")
    with pytest.raises(AttributeError, match="module 'huggingface_hub' has no attribute 'Other'"):
        _ = module.Other


def test_a_name_that_the_library_still_has_is_its_own() -> None:
    module: Any = ModuleType("huggingface_hub")

    def find(name: str) -> str:
        if name == "Repository":
            return "its own"
        raise AttributeError(name)

    module.__getattr__ = find
    old_names.add(named("hub-repository"), module)
    assert module.Repository == "its own"
    with pytest.raises(AttributeError, match="Other"):
        _ = module.Other


@pytest.mark.parametrize("offline", [True, False])
def test_is_offline_mode_is_that_of_the_hub(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], offline: bool
) -> None:
    module, hub = ModuleType("transformers.utils"), SimpleNamespace(is_offline_mode=lambda: offline)
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    for adaptation in ("telemetry", "offline-mode"):
        old_names.add(named(adaptation), module)
    assert module.is_offline_mode() is offline
    line = "transformers.utils.is_offline_mode is now huggingface_hub.is_offline_mode"
    assert capsys.readouterr().err == f"adapted (offline-mode): {line}\n"
    assert module.send_example_telemetry("run_glue", {}) is None
    assert "(telemetry): send_example_telemetry was removed" in capsys.readouterr().err


def test_a_test_for_tpus_is_the_one_for_xla_and_ignores_its_old_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("transformers.file_utils")
    utils = SimpleNamespace(is_torch_xla_available=lambda: "xla")
    monkeypatch.setitem(sys.modules, "transformers.utils", utils)
    old_names.add(named("moved-names"), module)
    assert module.is_torch_tpu_available(check_device=False) == "xla"


def test_a_removed_name_is_added_to_transformers_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Lazy:
        def __init__(self, name: str) -> None:
            self.__name__ = name

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(name)

    monkeypatch.setitem(
        sys.modules, "cpu_train_stack.compat.old_optimizer", SimpleNamespace(AdamW="the optimizer")
    )
    old_names.add_lazily(named("adamw"), SimpleNamespace(_LazyModule=Lazy))
    top: Any = Lazy("transformers")
    assert top.AdamW == "the optimizer"
    assert "(adamw): AdamW was removed from transformers" in capsys.readouterr().err
    for where, name in ((top, "Other"), (Lazy("transformers.models"), "AdamW")):
        with pytest.raises(AttributeError, match=name):
            getattr(where, name)
