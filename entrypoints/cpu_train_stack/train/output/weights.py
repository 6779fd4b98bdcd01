"""A folder with weights: only one kind of weights, and an adapter's labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cpu_train_stack.train.data.labels import REGRESSION
from cpu_train_stack.train.model import adapters, configuration
from cpu_train_stack.train.output import folder as output_folder


def complete(folder: Path, model: Any) -> None:
    """Complete a folder in which `model` was saved. It may hold weights of an earlier run.

    The other kind of weights is deleted: transformers and `train` load an adapter if the folder has one, and would
    ignore new full weights. The model's configuration is saved beside an adapter if its labels have names, because
    the adapter's head has their order, and if the head is for regression.
    """
    configs = getattr(model, "peft_config", {}).values()
    has_adapter = bool(configs)
    if any(Path(config.base_model_name_or_path or "").resolve() == folder.resolve() for config in configs):
        return  # the full weights are the adapter's base
    full = (configuration.FILE, *output_folder.FULL_WEIGHTS)
    for pattern in full if has_adapter else (adapters.CONFIG, *adapters.WEIGHTS):
        for path in folder.glob(pattern):
            path.unlink()
    is_regression = getattr(model.config, "problem_type", None) == REGRESSION
    if has_adapter and (is_regression or configuration.names_in(model.config) is not None):
        model.config.save_pretrained(folder)
