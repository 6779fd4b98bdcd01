"""A push to the hub that fails."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from cpu_train_stack.cli import packages
from cpu_train_stack.train.output import hub


@pytest.mark.parametrize(
    ("release", "command"),
    [
        ("0.26.5", "huggingface-cli upload me/first /output/first --exclude 'checkpoint-*' '_*'"),
        ("0.34.4", "hf upload me/first /output/first --exclude 'checkpoint-*' '_*'"),
        ("2.4.0", "hf upload me/first /output/first --exclude 'checkpoint-*' --exclude '_*'"),
    ],
)
def test_the_command_after_a_failed_push_leaves_out_what_trainer_does_not_push(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], release: str, command: str
) -> None:
    monkeypatch.setattr(packages, "versions", lambda _: {"huggingface_hub": release})
    trainer: Any = SimpleNamespace(
        push_to_hub=Mock(side_effect=OSError("no route")),
        args=SimpleNamespace(output_dir="/output/first"),
        hub_model_id="me/first",
    )
    assert hub.push(trainer) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(f": push them with {command}, with HF_TOKEN set")
