"""`train --help`, which shows Hugging Face's texts and this trainer's own."""

from __future__ import annotations

import argparse
from dataclasses import Field, fields
from typing import Any

import pytest

from cpu_train_stack.train.flags import help as help_text
from cpu_train_stack.train.flags.arguments import TaskArguments


def shown(monkeypatch: pytest.MonkeyPatch, name: str, text: str, default: object = None) -> str:
    """The help about a flag, without line breaks."""
    parser = argparse.ArgumentParser()
    parser.add_argument(f"--{name}", help=text, default=default)
    monkeypatch.setattr(help_text, "make_parser", lambda _tasks: parser)
    return " ".join(help_text.render(False, {}).split())


@pytest.mark.parametrize("flag", fields(TaskArguments), ids=lambda flag: flag.name)
def test_no_text_of_this_trainer_is_cut(monkeypatch: pytest.MonkeyPatch, flag: Field[Any]) -> None:
    text = flag.metadata["help"]
    assert text in shown(monkeypatch, flag.name, text, flag.default)


def test_the_flag_that_the_pages_use_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    found = shown(monkeypatch, "gradient_checkpointing", "Deprecated alias of `activation_checkpointing`.")
    assert "--gradient_checkpointing Keep only the input of each layer, and recompute the rest" in found


def test_a_flag_that_the_image_refuses_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    found = shown(monkeypatch, "torch_compile", "Compile the model using `torch.compile()` for faster training.")
    assert "--torch_compile Compile the model. Needs a C++ compiler, which the image lacks." in found
