"""A folder with weights: only one kind of weights, an adapter's labels, and every tensor of the model."""

from __future__ import annotations

import contextlib
import inspect
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from cpu_train_stack.group.create import agreement
from cpu_train_stack.train.data.labels import REGRESSION
from cpu_train_stack.train.model import adapters, configuration, sharding
from cpu_train_stack.train.output import folder as output_folder
from cpu_train_stack.train.output.integrity import read_tensors, refused

_FULL = ("model.safetensors", "model-*-of-*.safetensors")
_OLD = re.compile(r"(?<=LayerNorm\.)(weight|bias)$")


def check(checkpoint: Path, model: Any) -> None:
    """Raise UsageError if the checkpoint lacks a tensor of the model, or has one of another shape.

    transformers and peft would only warn, and train on with the tensor of the pretrained model or a new one.
    """
    if hasattr(model, "peft_config"):
        from peft import get_peft_model_state_dict

        files: list[str] = [adapters.WEIGHTS[0]]
        ignored: list[str] = []
        is_known = "save_embedding_layers" in inspect.signature(get_peft_model_state_dict).parameters
        options = {"save_embedding_layers": False} if is_known else {}  # before peft 0.6, it saves none
        layouts = [get_peft_model_state_dict(model, **options)]
    else:
        files = [*_FULL]
        ignored = model._keys_to_ignore_on_save or []
        layouts = _layouts(model)
    paths, shapes = _files(checkpoint, files)
    # A weight may have several names: those of old files, and those of the layers that share it, of which a file
    # has one.
    names: dict[int, set[str]] = {}
    for layout in layouts:
        for name, tensor in layout.items():
            names.setdefault(id(tensor), set()).add(name)
    for name, tensor in max(layouts, key=lambda layout: len(layout.keys() & shapes.keys())).items():
        present = name if name in shapes else next(iter(names[id(tensor)] & shapes.keys()), None)
        if present is None and not any(re.search(pattern, name) for pattern in ignored):
            problem = f"lacks the tensor '{name}'"
        elif present is not None and shapes[present] != tuple(tensor.shape):
            found, expected = [*shapes[present]], [*tensor.shape]
            problem = f"has the tensor '{present}' with the shape {found}, expected {expected}"
        else:
            continue
        raise refused(checkpoint, f"{paths[0].name if len(paths) == 1 else 'its weights'} {problem}")


def restore(model: Any, checkpoint: Path) -> bool:
    """Load a checkpoint in which the weights have other names than in the model. False if Trainer can load it.

    transformers 5 joins the weights of experts in memory, and saves them one by one. Old files have gamma and
    beta. Trainer loads by the names in memory, and would keep the weights that the model has.
    """
    paths, shapes = _files(checkpoint, _FULL)
    if not paths or hasattr(model, "peft_config") or _has_names_of(model, shapes):
        return False
    model.load_state_dict(_converted(model, checkpoint))
    return True


restore_best = agreement()(restore)


def restore_shards(model: Any, checkpoint: Path, reads: bool) -> None:
    """Load a checkpoint into each rank's shard. Only the rank that `reads` opens files. A collective."""
    from safetensors.torch import load_file

    state: dict[str, Any] = {}
    with agreement():
        if reads:
            paths, shapes = _files(checkpoint, _FULL)
            if _has_names_of(model, shapes):
                state = {name: tensor for path in paths for name, tensor in load_file(path).items()}
            else:
                state = _converted(model, checkpoint)
    sharding.load_weights(model, state)


def _has_names_of(model: Any, shapes: dict[str, Any]) -> bool:
    """Whether the files have each weight of the model by a name in memory. Layers that share a weight have one."""
    state, ignored = model.state_dict(keep_vars=True), model._keys_to_ignore_on_save or []
    present = {id(tensor) for name, tensor in state.items() if name in shapes}
    others = [name for name, tensor in state.items() if id(tensor) not in present]
    return all(any(re.search(pattern, name) for pattern in ignored) for name in others)


def _converted(model: Any, checkpoint: Path) -> dict[str, Any]:
    """The checkpoint's weights by the names in memory. Raises UsageError for a missing one or another shape."""
    options = {"output_loading_info": True, "ignore_mismatched_sizes": True}
    copy, info = sharding.class_of(model).from_pretrained(checkpoint, **options)
    state = copy.state_dict(keep_vars=True)
    reshaped = [entry[0] if isinstance(entry, tuple) else entry for entry in info["mismatched_keys"]]
    lacking = {*info["missing_keys"], *reshaped}
    present = {id(tensor) for name, tensor in state.items() if name not in lacking}
    for name in sorted(lacking & state.keys()):
        if id(state[name]) not in present:
            problem = "have another shape of" if name in reshaped else "lack"
            raise refused(checkpoint, f"the weights {problem} the tensor '{name}'")
    return {name: tensor.detach() for name, tensor in state.items()}


def _files(checkpoint: Path, patterns: Iterable[str]) -> tuple[list[Path], dict[str, tuple[int, ...]]]:
    """The files with weights, and the shapes of their tensors. Raises UsageError for a broken file."""
    paths = sorted(path for pattern in patterns for path in checkpoint.glob(pattern))
    shapes: dict[str, tuple[int, ...]] = {}
    for path in paths:
        try:
            shapes.update(read_tensors(path))
        except ValueError as error:
            raise refused(checkpoint, f"{path.name} is broken") from error
    return paths, shapes


def _layouts(model: Any) -> list[dict[str, Any]]:
    """The weights of a full model, without data, by each set of names that files may have for them.

    transformers chooses the names by the files that the model was loaded from; a checkpoint may be of another
    release, or of a run that loaded other files.
    """
    weights: dict[int, Any] = {}
    state = model.state_dict(keep_vars=True)
    for tensor in state.values():
        weights[id(tensor)] = torch.empty(tensor.shape, device="meta")
    state = {name: weights[id(tensor)] for name, tensor in state.items()}
    try:
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import revert_weight_conversion
    except ImportError:  # before transformers 5: only LayerNorm has other names in old files
        old = {"weight": "gamma", "bias": "beta"}
        return [state, {_OLD.sub(lambda found: old[found[0]], name): tensor for name, tensor in state.items()}]
    own = vars(model).get("_weight_conversions")
    layouts = [state]
    try:
        # Those of the model's files, and those of a new model.
        for conversions in (own, None):
            model._weight_conversions = conversions
            layouts.append(dict(revert_weight_conversion(model, state)))
        # All that transformers can load. It cannot revert every conversion.
        with contextlib.suppress(ValueError, NotImplementedError, LookupError):
            model._weight_conversions = get_model_conversion_mapping(model)
            layouts.append(dict(revert_weight_conversion(model, state)))
    finally:
        model._weight_conversions = own
    return layouts


def complete(folder: Path, model: Any) -> None:
    """Complete a folder in which `model` was saved. It may hold weights of an earlier run.

    The other kind of weights is deleted: transformers and `train` load an adapter if the folder has one, and would
    ignore new full weights. The model's configuration is saved beside an adapter if its labels have names, because
    the adapter's head has their order, and if the head is for regression.
    """
    configs = getattr(model, "peft_config", {}).values()
    has_adapter = bool(configs)
    if any(
        os.path.realpath(config.base_model_name_or_path or "") == os.path.realpath(folder) for config in configs
    ):
        return  # the full weights are the adapter's base
    full = (configuration.FILE, *output_folder.FULL_WEIGHTS)
    for pattern in full if has_adapter else (adapters.CONFIG, *adapters.WEIGHTS):
        for path in folder.glob(pattern):
            path.unlink()
    is_regression = getattr(model.config, "problem_type", None) == REGRESSION
    if has_adapter and (is_regression or configuration.names_in(model.config) is not None):
        model.config.save_pretrained(folder)
