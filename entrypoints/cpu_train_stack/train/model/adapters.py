"""LoRA adapters: add a new adapter to a model, load one from a folder, and merge one into the model's weights.

peft is imported only if needed.
"""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Collection
from pathlib import Path
from types import MethodType
from typing import Any

from cpu_train_stack.cli.errors import UsageError, short_line
from cpu_train_stack.cli.files import parse_json
from cpu_train_stack.train.flags.arguments import Task, TaskArguments
from cpu_train_stack.train.model import quantization

CONFIG = "adapter_config.json"
WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
MERGED = "merged"
UNFINISHED = f".{MERGED}"
# peft's names of the tasks whose models have a head of their own, which is trained and saved as a whole beside the
# adapter.
WITH_HEAD = ("SEQ_CLS", "TOKEN_CLS", "QUESTION_ANS")


def is_adapter(folder: Path) -> bool:
    """Whether `folder` holds an adapter without its base model."""
    return (folder / CONFIG).is_file()


def base_of(name: str) -> str | None:
    """The base model of the adapter in folder `name`; None if the folder holds no adapter."""
    path = Path(name) / CONFIG
    if not is_adapter(Path(name)):
        return None
    try:
        base = parse_json(path.read_text(encoding="utf-8")).get("base_model_name_or_path")
    except (OSError, ValueError, AttributeError) as error:
        raise UsageError(
            f"adapter folder '{name}': {CONFIG} is broken ({error}): copy the folder again"
        ) from error
    if not base:
        raise UsageError(
            f"adapter folder '{name}': {CONFIG} has no base_model_name_or_path, expected the adapter's base model"
        )
    return str(base)


def has_adapter(arguments: TaskArguments) -> bool:
    """Whether the job has an adapter: a new one, or that of the model's folder."""
    return arguments.use_peft or base_of(str(arguments.model_name_or_path)) is not None


def check(arguments: TaskArguments) -> None:
    """Raise UsageError for flags that exclude each other, and for an image without peft."""
    is_adapted = has_adapter(arguments)
    if arguments.merge_adapter and not is_adapted:
        raise UsageError(
            "--merge_adapter needs an adapter: add --use_peft, or pass an adapter as --model_name_or_path"
        )
    if is_adapted and importlib.util.find_spec("peft") is None:
        raise UsageError(
            "LoRA adapters need peft, which this image does not have: build a pin that has peft (./inv matrix)"
        )


def heads_of(model: Any) -> list[str]:
    """The modules with weights outside the pretrained base model, such as `classifier`, or `pooler` of DeBERTa."""
    parts = {name for name, part in model.named_children() if any(True for _ in part.parameters())}
    if model.base_model_prefix in parts:
        return sorted(parts - {model.base_model_prefix})
    return sorted(parts & {"classifier", "score", "qa_outputs"})  # T5's encoder and decoder are parts too


def attach(model: Any, task: Task, arguments: TaskArguments, new: Collection[str] = ()) -> Any:
    """The model with a new adapter (--use_peft) or with the adapter of its folder; unchanged without an adapter.

    `new`: the names of weights that were not pretrained. A new adapter is saved with them and with the head.

    Raises UsageError if peft finds no layer for the adapter.
    """
    name = str(arguments.model_name_or_path)
    if base_of(name) is not None:
        from peft import PeftModel

        try:
            adapted = PeftModel.from_pretrained(model, name, is_trainable=True)
        except Exception as error:
            raise UsageError(f"adapter '{name}' cannot be loaded: {short_line(error)}") from error
        if _widen_heads(adapted):
            adapted.load_adapter(name, adapted.active_adapter, is_trainable=True)  # again, without rounding
        _pass_inputs_on(adapted)
        return adapted
    if not arguments.use_peft:
        return model
    from peft import LoraConfig, get_peft_model

    saved = _saved_whole(model, task, new)
    given = arguments.lora_target_modules
    layers = [layer.strip() for layer in (given or "all-linear").split(",") if layer.strip()]
    config = LoraConfig(
        task_type=task.peft_type,
        r=arguments.lora_r,
        lora_alpha=arguments.lora_alpha,
        lora_dropout=arguments.lora_dropout,
        target_modules=_all_linear(model, saved) if layers == ["all-linear"] else layers,
        modules_to_save=saved or None,
    )
    try:
        adapted = get_peft_model(model, config)
    except (TypeError, ValueError) as error:
        raise UsageError(f"--lora_target_modules {given or 'all-linear'}: {short_line(error)}") from error
    _widen_heads(adapted)
    _pass_inputs_on(adapted)
    return adapted


def _pass_inputs_on(adapted: Any) -> None:
    """peft's model for question answering (0.21) keeps token_type_ids and position_ids from the model: BERT could
    not tell the question from the context."""
    from peft import PeftModel, PeftModelForQuestionAnswering

    if isinstance(adapted, PeftModelForQuestionAnswering):
        adapted.forward = MethodType(PeftModel.forward, adapted)


def trained_whole(model: Any) -> list[str]:
    """The modules that are trained and saved as a whole beside the model's adapter."""
    modules = (name for name, part in model.named_modules() if hasattr(part, "modules_to_save"))
    return [name.rpartition("base_model.model.")[2] for name in modules if name.startswith("base_model.model.")]


def not_saved(adapted: Any, names: Collection[str]) -> list[str]:
    """The weights among `names` that the adapter of `adapted` does not replace."""
    marker = f".modules_to_save.{adapted.active_adapter}."
    saved = [name.replace(marker, ".") for name, _ in adapted.named_parameters() if marker in name]
    return [name for name in names if not any(whole.endswith(f".{name}") for whole in saved)]


def _saved_whole(model: Any, task: Task, new: Collection[str]) -> list[str]:
    """peft's modules_to_save: the head, and other modules with new weights, which are random."""
    heads = heads_of(model) if task.peft_type in WITH_HEAD else []
    owners = {name.rpartition(".")[0] for name in new if not _is_inside(name, heads)}
    # The bias of a language model's head starts as zero, and stays beside the frozen words.
    words = {id(weight) for weight in model.get_input_embeddings().parameters()}
    alone = [
        name
        for name in owners
        if not any(id(weight) in words for weight in model.get_submodule(name).parameters())
    ]
    return [*heads, *sorted(name for name in alone if not _is_inside(name, [one for one in alone if one != name]))]


def _is_inside(name: str, modules: Collection[str]) -> bool:
    return any(f"{name}.".startswith(f"{module}.") for module in modules)


def _all_linear(model: Any, saved: Collection[str]) -> Any:
    """peft's target_modules: all linear layers except those that are trained as a whole."""
    if not saved:
        return "all-linear"
    import torch
    from transformers.pytorch_utils import Conv1D

    words = model.get_output_embeddings()
    linear = [
        name
        for name, module in model.named_modules()
        if isinstance(module, (torch.nn.Linear, Conv1D)) and module is not words
    ]
    return [name for name in linear if not _is_inside(name, saved)]


def _widen_heads(model: Any) -> bool:
    """Cast layers that are trained as a whole to float32: small steps are lost in bf16 weights.

    peft casts only the weights of the adapter. Returns whether one was not in float32.
    """
    widened = False
    for module in model.modules():
        weights = [weight for weight in module.parameters(recurse=False) if _is_narrow(weight)]
        if not any(weight.requires_grad for weight in weights):
            continue
        for weight in weights:
            weight.data = weight.data.float()
        module.register_forward_pre_hook(_inputs_like_weights)
        widened = True
    return widened


def _is_narrow(tensor: Any) -> bool:
    return str(tensor.dtype) in ("torch.bfloat16", "torch.float16")


def _inputs_like_weights(module: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Inputs in the dtype of the module's weights, which are narrow in an evaluation with --bf16_full_eval."""
    dtype = next(module.parameters(recurse=False)).dtype
    return tuple(value.to(dtype) if hasattr(value, "dtype") and _is_narrow(value) else value for value in inputs)


def describe(model: Any) -> dict[str, int]:
    """For result.json: the number of parameters, and of trained parameters."""
    sizes = [(quantization.size_of(parameter), parameter.requires_grad) for parameter in model.parameters()]
    return {
        "parameters": sum(size for size, _ in sizes),
        "trainable_parameters": sum(size for size, trained in sizes if trained),
    }


def save_merged(model: Any, tokenizer: Any, output: Path) -> Path:
    """Write the model with its adapter merged to OUTPUT/merged, atomically. Removes the adapter from `model`."""
    folder, partial = output / MERGED, output / UNFINISHED
    shutil.rmtree(partial, ignore_errors=True)
    merged = merge(model)
    merged.save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)
    return folder


def merge(model: Any) -> Any:
    """The model with its adapter merged into its weights. Removes the adapter from `model`.

    Tied layers get weights of their own if the adapter changes one of them: peft would change both.
    """
    base = model.get_base_model()
    embedding, output = base.get_input_embeddings(), base.get_output_embeddings()
    is_adapted = hasattr(embedding, "base_layer") or hasattr(output, "base_layer")
    is_tied = output is not None and output.weight is embedding.weight
    if is_adapted and is_tied and not base.config.is_encoder_decoder:  # T5 scales the scores of tied layers
        layer = getattr(output, "base_layer", output)
        for name, value in list(layer.named_parameters(recurse=False)):  # BERT ties the bias, too
            setattr(layer, name, type(value)(value.detach().clone(), requires_grad=False))
        base.config.tie_word_embeddings = False
    return model.merge_and_unload()
