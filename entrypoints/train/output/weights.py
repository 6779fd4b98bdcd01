"""A folder with weights: only one kind of weights, and an adapter's labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from entrypoints.train.model import adapters, configuration

_FULL = (configuration.FILE, "model*.safetensors", "model.safetensors.index.json", "pytorch_model*.bin")


def complete(folder: Path, model: Any) -> None:
    """Complete a folder in which `model` was saved. It may hold weights of an earlier run.

    transformers and `train` load an adapter if the folder has one, so that it would hide full weights. An adapter
    gets the model's configuration if that names the labels: the order of the labels is that of its head.
    """
    configs = getattr(model, "peft_config", {}).values()
    has_adapter = bool(configs)
    if any(Path(config.base_model_name_or_path or "").resolve() == folder.resolve() for config in configs):
        return  # the full weights are the adapter's base
    for pattern in _FULL if has_adapter else (adapters.CONFIG, *adapters.WEIGHTS):
        for path in folder.glob(pattern):
            path.unlink()
    if has_adapter and configuration.names_in(model.config) is not None:
        model.config.save_pretrained(folder)
