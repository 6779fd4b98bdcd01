"""--fsdp, --torch_compile, and the folders of adapters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from entrypoints.cli.errors import UsageError
from entrypoints.train import main
from entrypoints.train.flags import unsupported
from entrypoints.train.model import adapters
from entrypoints.train.output import checkpoints


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, False), ("", False), ("false", False), (True, True), ("true", True), ("full_shard", True)],
)
def test_fsdp_is_asked_for_or_not(value: Any, expected: bool) -> None:
    assert unsupported.wants_sharding(value) is expected


@pytest.mark.parametrize("value", ["shard_grad_op", "full_shard offload", "hybrid_shard"])
def test_other_ways_of_sharding_are_refused(value: str) -> None:
    with pytest.raises(UsageError, match="expected full_shard"):
        unsupported.wants_sharding(value)


@pytest.mark.parametrize("version", [None, "4.41.0", "4.46.3", "5.23.0", "6.0.0rc1"])
def test_the_trainer_takes_every_transformers_that_it_can(version: str | None) -> None:
    main.check_release(version)


@pytest.mark.parametrize("version", ["4.24.0", "4.40.2"])
def test_an_older_transformers_is_refused_with_what_to_do(version: str) -> None:
    with pytest.raises(UsageError, match=f"needs transformers 4.41.0 or newer, this image has {version}: use"):
        main.check_release(version)


def test_a_compilation_without_a_compiler_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_an_adapter_names_its_model(tmp_path: Path) -> None:
    config = json.dumps({"base_model_name_or_path": "/model"})
    assert adapters.base_of(str(adapter(tmp_path / "a", config))) == "/model"
    assert adapters.base_of(str(tmp_path)) is None
    for number, content in enumerate(("{", "{}", "[]")):
        with pytest.raises(UsageError, match="adapter folder"):
            adapters.base_of(str(adapter(tmp_path / str(number), content)))


def test_a_checkpoint_of_an_adapter_is_not_one_of_a_whole_model(tmp_path: Path) -> None:
    path = adapter(tmp_path / "checkpoint-3", "{}")
    assert adapters.is_adapter(path)
    with pytest.raises(UsageError, match="found an adapter, expected a full model"):
        checkpoints.check_same_model(path, {}, adapter=False)
    checkpoints.check_same_model(path, {}, adapter=True)
    (tmp_path / "checkpoint-4").mkdir()
    with pytest.raises(UsageError, match="found a full model, expected an adapter"):
        checkpoints.check_same_model(tmp_path / "checkpoint-4", {}, adapter=True)
