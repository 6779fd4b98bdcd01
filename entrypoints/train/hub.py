"""--push_to_hub: what can be wrong with it is told before training, and a push that fails loses nothing."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from entrypoints.errors import UsageError

if TYPE_CHECKING:
    from transformers import Trainer, TrainingArguments

_LONGEST = 300


def check(arguments: TrainingArguments) -> None:
    """Makes the repository, as Trainer will. Raises UsageError where that fails or it may not be written to."""
    from huggingface_hub import HfApi

    api = HfApi(token=arguments.hub_token)
    name = arguments.hub_model_id or Path(arguments.output_dir).absolute().name
    try:
        made = api.create_repo(name, private=arguments.hub_private_repo, exist_ok=True)
        if "write" in inspect.signature(api.auth_check).parameters:
            api.auth_check(made.repo_id, write=True)
    except Exception as error:
        raise UsageError(
            f"--push_to_hub: '{name}' at {api.endpoint} cannot be written to ({_line(error)}), expected a "
            "repository of yours: check the network, HF_TOKEN and --hub_model_id, or drop the flag"
        ) from error


def push(trainer: Trainer) -> int:
    """Pushes the weights, which are in the output folder. A collective. Returns 0, or 1 with a line on stderr."""
    try:
        trainer.push_to_hub(commit_message="Model save")
    except Exception as error:  # noqa: BLE001 - whatever the network and the hub come up with
        folder = trainer.args.output_dir
        print(
            f"error: the push to the hub failed ({_line(error)}), the weights are in {folder}: push them with "
            f"hf upload {trainer.hub_model_id} {folder}",
            file=sys.stderr,
            flush=True,
        )
        return 1
    return 0


def _line(error: Exception) -> str:
    """What an error says, in one line."""
    return (" ".join(str(error).split()) or type(error).__name__)[:_LONGEST]
