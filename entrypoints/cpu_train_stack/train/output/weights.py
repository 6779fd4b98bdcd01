"""A folder with weights: only one kind of weights, an adapter's labels, and every tensor of the model."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.train.data.labels import REGRESSION
from cpu_train_stack.train.model import adapters, configuration, sharding
from cpu_train_stack.train.output import folder as output_folder
from cpu_train_stack.train.output.integrity import tensors_of


def check(checkpoint: Path, model: Any) -> None:
    """Raise UsageError if the checkpoint lacks a tensor of the model, or has one of another shape.

    transformers and peft would only warn, and train on with the tensor of the pretrained model or a new one.
    """
    if hasattr(model, "peft_config"):
        from peft import get_peft_model_state_dict

        files: list[str] = [adapters.WEIGHTS[0]]
        ignored: list[str] = []
        expected = get_peft_model_state_dict(model, save_embedding_layers=False)
    else:
        files = ["model.safetensors", "model-*-of-*.safetensors"]
        ignored = model._keys_to_ignore_on_save or []
        expected = _as_saved(model)
    paths = sorted(path for pattern in files for path in checkpoint.glob(pattern))
    shapes = {name: shape for path in paths for name, shape in (tensors_of(path) or {}).items()}
    if sharding.is_sharded(model) and not expected.keys() >= shapes.keys():
        return  # the names in the files differ, as those of experts do
    # A file holds weights that two layers share only once.
    shared = {id(tensor) for name, tensor in expected.items() if name in shapes}
    for name, tensor in expected.items():
        found = shapes.get(name)
        is_missing = found is None and id(tensor) not in shared
        if is_missing and not any(re.search(pattern, name) for pattern in ignored):
            problem = f"lacks the tensor '{name}'"
        elif found is not None and found != tuple(tensor.shape):
            problem = f"has the tensor '{name}' with the shape {[*found]}, expected {[*tensor.shape]}"
        else:
            continue
        raise UsageError(
            f"checkpoint '{checkpoint}': {paths[0].name if len(paths) == 1 else 'its weights'} {problem}: delete "
            "this checkpoint to continue from an older one"
        )


def restore(model: Any, checkpoint: Path) -> bool:
    """Load a checkpoint in which the weights have other names than in the model. False if Trainer can load it.

    transformers 5 joins the weights of experts in memory, and saves them one by one. Trainer loads by the names in
    memory, and would keep the weights that the model has.
    """
    is_here = any(checkpoint.glob("model*.safetensors"))
    if not is_here or hasattr(model, "peft_config") or _as_saved(model).keys() == model.state_dict().keys():
        return False
    model.load_state_dict(type(model).from_pretrained(checkpoint, dtype=model.dtype).state_dict())
    return True


def _as_saved(model: Any) -> dict[str, Any]:
    """The weights of a full model by the names that they have in its files."""
    state: dict[str, Any] = model.state_dict(keep_vars=True)
    try:
        from transformers.core_model_loading import revert_weight_conversion
    except ImportError:  # before transformers 5, the names are the same
        return state
    if sharding.is_sharded(model):
        return state
    with torch.no_grad():
        return dict(revert_weight_conversion(model, state))


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
