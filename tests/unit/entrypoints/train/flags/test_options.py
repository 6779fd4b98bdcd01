"""--fsdp, --torch_compile, and the folders of adapters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.train import main
from cpu_train_stack.train.flags import unsupported
from cpu_train_stack.train.model import adapters
from cpu_train_stack.train.output import checkpoints


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, False), ("", False), ("false", False), (True, True), ("true", True), ("full_shard", True)],
)
def test_values_of_fsdp(value: Any, expected: bool) -> None:
    assert unsupported.wants_sharding(value) is expected


@pytest.mark.parametrize("value", ["shard_grad_op", "full_shard offload", "hybrid_shard"])
def test_other_kinds_of_sharding_are_refused(value: str) -> None:
    with pytest.raises(UsageError, match="expected full_shard"):
        unsupported.wants_sharding(value)


@pytest.mark.parametrize("version", [None, "4.41.0", "4.46.3", "5.23.0", "6.0.0rc1"])
def test_supported_releases_of_transformers_are_accepted(version: str | None) -> None:
    main.check_release(version)


@pytest.mark.parametrize("version", ["4.24.0", "4.40.2"])
def test_an_older_transformers_is_refused_with_the_fix(version: str) -> None:
    with pytest.raises(UsageError, match=f"needs transformers 4.41.0 or newer, this image has {version}: use"):
        main.check_release(version)


def test_compilation_without_a_compiler_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/no/such/compiler")
    for asked in (
        {"torch_compile": True},
        {"torch_compile_backend": "inductor"},
        {"torch_compile_mode": "default"},
    ):
        with pytest.raises(UsageError, match="/no/such/compiler"):
            unsupported.check_compiler(asked)
    unsupported.check_compiler({"torch_compile": False})
    unsupported.check_compiler({"torch_compile": True, "torch_compile_backend": "aot_eager"})


def adapter(folder: Path, content: str) -> Path:
    folder.mkdir()
    (folder / adapters.CONFIG).write_text(content)
    return folder


def test_an_adapter_names_its_base_model(tmp_path: Path) -> None:
    config = json.dumps({"base_model_name_or_path": "/model"})
    assert adapters.base_of(str(adapter(tmp_path / "a", config))) == "/model"
    assert adapters.base_of(str(tmp_path)) is None
    for number, content in enumerate(("{", "{}", "[]")):
        with pytest.raises(UsageError, match="adapter folder"):
            adapters.base_of(str(adapter(tmp_path / str(number), content)))


def test_checkpoints_of_adapters_and_of_full_models_are_not_mixed(tmp_path: Path) -> None:
    path = adapter(tmp_path / "checkpoint-3", "{}")
    assert adapters.is_adapter(path)
    with pytest.raises(UsageError, match="found an adapter, expected a full model"):
        checkpoints.check_same_model(path, {}, adapter=False)
    checkpoints.check_same_model(path, {}, adapter=True)
    (tmp_path / "checkpoint-4").mkdir()
    with pytest.raises(UsageError, match="found a full model, expected an adapter"):
        checkpoints.check_same_model(tmp_path / "checkpoint-4", {}, adapter=True)
