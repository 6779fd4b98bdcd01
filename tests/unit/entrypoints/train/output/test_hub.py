"""A push to the hub that fails."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from entrypoints.train.output import hub


def test_the_command_after_a_failed_push_leaves_out_what_trainer_does_not_push(
    capsys: pytest.CaptureFixture[str],
) -> None:
    trainer: Any = SimpleNamespace(
        push_to_hub=Mock(side_effect=OSError("no route")),
        args=SimpleNamespace(output_dir="/output/first"),
        hub_model_id="me/first",
    )
    assert hub.push(trainer) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(
        ": push them with hf upload me/first /output/first --exclude 'checkpoint-*' --exclude '_*'"
    )
