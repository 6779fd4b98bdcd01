"""LoRA adapters: beside a model, from a folder, and merged into its weights. peft is imported only if needed."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

from entrypoints.cli.errors import UsageError
from entrypoints.train.flags.arguments import TaskArguments

CONFIG = "adapter_config.json"
WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
MERGED = "merged"
# peft's names; a task without one has no head to save whole.
_KINDS = {
    "text-classification": "SEQ_CLS",
    "token-classification": "TOKEN_CLS",
    "question-answering": "QUESTION_ANS",
    "text-generation": "CAUSAL_LM",
}


def is_adapter(folder: Path) -> bool:
    """Whether `folder` holds an adapter without its base model."""
    return (folder / CONFIG).is_file()


def base_of(name: str) -> str | None:
    """The model that the adapter in folder `name` belongs to; None if the folder holds no adapter."""
    path = Path(name) / CONFIG
    if not is_adapter(Path(name)):
        return None
    try:
        base = json.loads(path.read_text(encoding="utf-8")).get("base_model_name_or_path")
    except (OSError, ValueError, AttributeError) as error:
        raise UsageError(f"adapter folder '{name}': {CONFIG} is broken ({error}); copy it again") from error
    if not base:
        raise UsageError(f"adapter folder '{name}': {CONFIG} names no base_model_name_or_path, expected its model")
    return str(base)


def check(arguments: TaskArguments) -> None:
    """Raises UsageError for flags that do not go together and for an image without peft."""
    continues = base_of(str(arguments.model_name_or_path)) is not None
    if arguments.merge_adapter and not (arguments.use_peft or continues):
        raise UsageError(
            "--merge_adapter needs an adapter: write --use_peft, or a --model_name_or_path that is one"
        )
    if (arguments.use_peft or continues) and importlib.util.find_spec("peft") is None:
        raise UsageError("LoRA adapters need peft, which this image lacks: build a pin that has it (./inv matrix)")


def attach(model: Any, task: str, arguments: TaskArguments) -> Any:
    """The model with the adapter that was asked for: a new one, or the one in its folder, to train on.

    Raises UsageError if peft finds no layer for it.
    """
    name = str(arguments.model_name_or_path)
    if base_of(name) is not None:
        from peft import PeftModel

        try:
            return PeftModel.from_pretrained(model, name, is_trainable=True)
        except Exception as error:
            raise UsageError(f"adapter '{name}' cannot be loaded: {_line(error)}") from error
    if not arguments.use_peft:
        return model
    from peft import LoraConfig, get_peft_model

    given = arguments.lora_target_modules
    layers = [layer.strip() for layer in given.split(",") if layer.strip()] if given else "all-linear"
    config = LoraConfig(
        task_type=_KINDS.get(task),
        r=arguments.lora_r,
        lora_alpha=arguments.lora_alpha,
        lora_dropout=arguments.lora_dropout,
        target_modules=layers[0] if layers == ["all-linear"] else layers,
    )
    try:
        return get_peft_model(model, config)
    except ValueError as error:
        raise UsageError(f"--lora_target_modules {given or 'all-linear'}: {_line(error)}") from error


def describe(model: Any) -> dict[str, int]:
    """For result.json: how many parameters there are, and how many of them are trained."""
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in model.parameters()]
    return {
        "parameters": sum(size for size, _ in sizes),
        "trainable_parameters": sum(size for size, trained in sizes if trained),
    }


def save_merged(model: Any, tokenizer: Any, output: Path) -> Path:
    """Writes the model with its adapter merged to OUTPUT/merged, whole or not at all. The adapter is gone then."""
    folder, partial = output / MERGED, output / f".{MERGED}"
    shutil.rmtree(partial, ignore_errors=True)
    merged = model.merge_and_unload()
    merged.save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)
    return folder


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
