"""--push_to_hub: check the access before training, and report how to repeat a push that failed."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING

from cpu_train_stack.cli import packages
from cpu_train_stack.cli.errors import UsageError, short_line
from cpu_train_stack.cli.say import say

if TYPE_CHECKING:
    from transformers import Trainer, TrainingArguments


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
            f"--push_to_hub: cannot write to '{name}' at {api.endpoint} ({short_line(error)}), "
            "expected a repository that you can write to: check the network, HF_TOKEN and --hub_model_id, or "
            "remove the flag"
        ) from error


def push(trainer: Trainer) -> int:
    """Push the saved weights. A collective. Returns 0, or 1 with a line on stderr."""
    try:
        trainer.push_to_hub(commit_message="Model save")
    except Exception as error:  # noqa: BLE001 - every failure leaves the weights in the output folder
        folder = trainer.args.output_dir
        say(
            f"error: the push to the hub failed ({short_line(error)}), the weights are in {folder}: "
            f"push them with {_upload()} {trainer.hub_model_id} {folder} {_exclude()}, with HF_TOKEN set"
        )
        return 1
    return 0


def _hub() -> tuple[int, ...]:
    return packages.release(packages.versions(("huggingface_hub",)).get("huggingface_hub"))


def _upload() -> str:
    return "hf upload" if _hub() >= (0, 34) else "huggingface-cli upload"


def _exclude() -> str:
    """For what Trainer does not push either: checkpoints, and this trainer's own files, such as the data's tokens.

    Before release 1.0, the last --exclude counts and takes several patterns. Since then, each takes one.
    """
    return f"--exclude 'checkpoint-*' {'--exclude ' if _hub() >= (1,) else ''}'_*'"
