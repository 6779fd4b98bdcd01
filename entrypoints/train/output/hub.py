"""--push_to_hub: access is checked before training, and a failed push loses nothing."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from entrypoints.cli.errors import UsageError, one_line

if TYPE_CHECKING:
    from transformers import Trainer, TrainingArguments

_MAX_LENGTH = 300  # of an error in a message


def check(arguments: TrainingArguments) -> None:
    """Create the repository, as Trainer will. Raises UsageError if that fails or the user may not write to it."""
    from huggingface_hub import HfApi

    api = HfApi(token=arguments.hub_token)
    name = arguments.hub_model_id or Path(arguments.output_dir).absolute().name
    try:
        created = api.create_repo(name, private=arguments.hub_private_repo, exist_ok=True)
        if "write" in inspect.signature(api.auth_check).parameters:
            api.auth_check(created.repo_id, write=True)
    except Exception as error:
        raise UsageError(
            f"--push_to_hub: cannot write to '{name}' at {api.endpoint} ({_short(error)}), expected "
            "a repository that you can write to: check the network, HF_TOKEN and --hub_model_id, or drop the flag"
        ) from error


class PushError(Exception):
    """A failed push, and how to repeat it."""


def push(trainer: Trainer) -> int:
    """Push the saved weights. A collective. Returns 0, or 1 with a line on stderr."""
    try:
        _push(trainer)
    except PushError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


def _push(trainer: Trainer) -> None:
    try:
        trainer.push_to_hub(commit_message="Model save")
    except Exception as error:
        folder = trainer.args.output_dir
        raise PushError(
            f"the push to the hub failed ({_short(error)}), the weights are in {folder}: push them with "
            f"hf upload {trainer.hub_model_id} {folder}"
        ) from error


def _short(error: Exception) -> str:
    return one_line(error)[:_MAX_LENGTH]
