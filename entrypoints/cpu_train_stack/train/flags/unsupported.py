"""Flags and values that this trainer, this image or the model does not support.

Without these checks, such a flag would cause a traceback during the job, or silently do nothing.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Callable

from cpu_train_stack import contract
from cpu_train_stack.cli.errors import UsageError, one_line
from cpu_train_stack.cli.numbers import whole_number
from cpu_train_stack.train.flags.flag import COUNT, MOST, FlagRange

_NO_CPU = "remove it, it has no meaning on CPU ranks"
# Flags that are refused whatever their value.
REFUSED = {
    "tpu_num_cores": _NO_CPU,
    "deepspeed": _NO_CPU,
    # Data sets keep columns for the metrics in addition to those of the model.
    "remove_unused_columns": "remove it, the trainer selects the model's columns",
}
_CUSTOM_METRICS = "is for custom metrics, train computes its metrics over all rows"
# Flags of which one value is refused, and why. None stands for any non-empty value.
_REASONS: dict[str, tuple[Any, str]] = {
    "eval_do_concat_batches": (False, _CUSTOM_METRICS),
    "eval_use_gather_object": (True, _CUSTOM_METRICS),
    "batch_eval_metrics": (True, _CUSTOM_METRICS),
    "label_names": (None, "is not needed, the task determines the label columns"),
    "use_liger_kernel": (True, "needs a GPU"),
    "restore_callback_states_from_checkpoint": (True, "is not needed, the trainer restores its own callbacks"),
    "debug": (None, "is not supported: it is for TPUs, or fails on the attention masks of current models"),
}
_WORKERS = FlagRange(0, 1024)
_NO_LIMIT = -1  # the default of --max_steps
_SIZE = FlagRange(0, 1_000_000)
# Fields of TrainingArguments and the numbers that they take.
_RANGES = {
    name: expected
    for names, expected in (
        (("gradient_accumulation_steps", "eval_accumulation_steps", "save_total_limit"), COUNT),
        (("per_device_train_batch_size", "per_device_eval_batch_size", "dataloader_prefetch_factor"), COUNT),
        (("per_gpu_train_batch_size", "per_gpu_eval_batch_size", "torch_empty_cache_steps"), COUNT),
        (("warmup_steps", "eval_delay"), FlagRange(0, MOST)),
        (("ddp_bucket_cap_mb",), FlagRange(1, 1 << 20)),
        (("num_train_epochs",), FlagRange(0, 1_000_000, "(]")),
        (("ddp_timeout",), FlagRange(0, 10_000_000, "(]")),
        (("logging_steps",), FlagRange(0, MOST, "(]", ", or --logging_strategy no")),
        (("eval_steps",), FlagRange(0, MOST, "(]", ", or --eval_strategy no")),
        (("save_steps",), FlagRange(0, MOST, "(]", ", or --save_strategy no")),
        (("max_steps",), FlagRange(1, MOST, hint=": remove it to train for --num_train_epochs")),
        (("dataloader_num_workers",), _WORKERS),
        (("learning_rate", "weight_decay", "adam_epsilon", "neftune_noise_alpha"), _SIZE),
        (("max_grad_norm",), FlagRange(0, 1_000_000, hint="; 0 does not clip the gradients")),
        (("adam_beta1", "adam_beta2"), FlagRange(0, 1, "[)")),
        (("label_smoothing_factor", "warmup_ratio"), FlagRange(0, 1)),
        (("seed",), FlagRange(0, 2**32 - 1)),  # NumPy's
        (("data_seed",), FlagRange(-(2**63), 2**63 - 1)),
    )
    for name in names
}
_LAYERS = "every_n_layers"
_OFF = frozenset({"", "false", "no", "0", "none"})
_ON = frozenset({"true", "yes", "1", "full_shard", "full_shard auto_wrap"})


def check_names(names: Collection[str]) -> None:
    """Raise UsageError for a flag without an equivalent. `names`: the flags of the command line."""
    for name, instead in REFUSED.items():
        if name in names:
            raise UsageError(f"--{name} is not a flag of this trainer: {instead}")


def check(values: dict[str, Any]) -> None:
    """Raise UsageError that lists every unsupported flag. `values`: the parsed fields of TrainingArguments."""
    found = []
    for name, (refused, why) in _REASONS.items():
        value = values.get(name)
        if value is refused if refused is not None else value:
            found.append(f"--{name} {why}: remove it")
    if found:
        raise UsageError("; ".join(found))


def check_ranges(values: dict[str, Any], ranges: Mapping[str, FlagRange]) -> None:
    """Raise UsageError for a number outside of its range. `values`: of all flags; an older release has fewer.

    `ranges`: of the flags that are not fields of TrainingArguments.
    """
    given = {name: value for name, value in values.items() if value is not None}
    if given.get("max_steps") == _NO_LIMIT:
        del given["max_steps"]
    for name, expected in {**ranges, **_RANGES}.items():
        if name in given and given[name] not in expected:
            raise UsageError(f"--{name} is {given[name]}, expected {expected}")


def workers(text: str) -> int:
    """The value of the variable for --dataloader_num_workers. Raises UsageError."""
    number = whole_number(text)
    if number is None or number not in _WORKERS:
        raise UsageError(f"{contract.DATALOADER_WORKERS} is {text!r}, expected {_WORKERS}")
    return number


def can_recompute(model: Any) -> bool:
    """Whether a model supports --gradient_checkpointing."""
    return bool(getattr(model, "supports_gradient_checkpointing", True))


def check_model(arguments: Any, model: Any) -> None:
    """Raise UsageError for a flag that the model does not support. `arguments`: TrainingArguments."""
    if arguments.gradient_checkpointing and not can_recompute(model):
        base = model.get_base_model() if hasattr(model, "get_base_model") else model  # peft's
        raise UsageError(
            f"--gradient_checkpointing is not supported by {type(base).__name__} in this release of transformers: "
            "remove it"
        )


def check_derived(arguments: Any) -> None:
    """Check values that TrainingArguments derives from the flags. Raises UsageError."""
    if arguments.dataloader_persistent_workers and not arguments.dataloader_num_workers:
        raise UsageError(
            "--dataloader_persistent_workers needs --dataloader_num_workers above 0, found 0: set both, or none"
        )
    config = arguments.accelerator_config
    if not config.even_batches:
        raise UsageError(
            "--accelerator_config even_batches false: all ranks need the same number of batches, remove it"
        )
    if config.dispatch_batches:
        raise UsageError("--accelerator_config dispatch_batches true needs batches of one shape, remove it")


def check_keys(flag: str, value: Any, known: Collection[str], user: str) -> None:
    """Raise UsageError if the value of a flag is not a JSON object, or has a key that `user` does not take."""
    if not isinstance(value, dict):
        raise UsageError(f"--{flag} is '{value}', expected a JSON object")
    for key in value:
        if key not in known:
            expected = (
                f"expected one of: {', '.join(sorted(known))}" if known else "expected none: remove the flag"
            )
            raise UsageError(f"--{flag} has the key '{key}', which {user} does not take, {expected}")


def check_recomputation(arguments: Any, flag: str) -> None:
    """Check the options of --gradient_checkpointing, which are those of torch and of transformers.

    `flag`: the name of the flag with the options. Raises UsageError.
    """
    options = arguments.gradient_checkpointing_kwargs
    if options is None:
        return
    import torch
    from torch.utils.checkpoint import checkpoint
    from transformers import PreTrainedModel

    # JSON has no functions. Offloading is from a GPU to the host.
    of_torch = {*_keywords(checkpoint), "preserve_rng_state"} - {"context_fn"}
    enable = getattr(PreTrainedModel, "activation_checkpointing_enable", None)  # since transformers 5
    of_layers = {*_keywords(enable)} & {_LAYERS} if enable else set()
    check_keys(flag, options, of_torch | of_layers, "gradient checkpointing on CPUs")
    layers = options.get(_LAYERS, 1)
    if type(layers) is not int or layers < 1:
        raise UsageError(f"--{flag} has {_LAYERS} {layers!r}, expected an integer above 0")
    try:
        given = {name: value for name, value in options.items() if name in of_torch}
        checkpoint(torch.nn.Identity(), torch.zeros(1, requires_grad=True), **{"use_reentrant": False, **given})
    except (ValueError, TypeError, RuntimeError) as error:
        raise UsageError(f"--{flag}: {one_line(error)}") from error


def _keywords(function: Callable[..., Any]) -> list[str]:
    """The names of the parameters that have a default."""
    parameters = inspect.signature(function).parameters.values()
    return [one.name for one in parameters if one.default is not one.empty]


def wants_sharding(value: Any) -> bool:
    """Whether the value of `--fsdp` means FSDP2. Raises UsageError for other kinds of sharding."""
    text = str(value if value is not None else "").strip().lower()
    if text in _OFF:
        return False
    if text in _ON:
        return True
    raise UsageError(f"--fsdp '{value}': expected full_shard, the only kind of sharding that works on CPU ranks")


def check_compiler(values: dict[str, Any]) -> None:
    """Raise UsageError if the tools for compilation are missing. `values`: the fields of TrainingArguments."""
    backend = values.get("torch_compile_backend")
    if not (values.get("torch_compile") or backend or values.get("torch_compile_mode")):
        return
    if (backend or "inductor") != "inductor":
        return
    compiler = os.environ.get("CXX") or "g++"
    spec = importlib.util.find_spec("torch")
    headers = Path(spec.origin).parent / "include" if spec and spec.origin else None
    missing = [
        what
        for what, is_present in (
            (f"a C++ compiler ({compiler})", shutil.which(compiler) is not None),
            ("torch's headers", headers is not None and headers.is_dir()),
        )
        if not is_present
    ]
    if missing:
        raise UsageError(
            f"--torch_compile needs {' and '.join(missing)}, not found in this image: remove the flag"
        )


def check_compiler_names(values: dict[str, Any]) -> None:
    """Raise UsageError for an unknown backend or mode. Needs accelerate and torch's compiler."""
    known: dict[str, list[str]] = {}
    if values.get("torch_compile_backend"):
        from accelerate.utils import DynamoBackend

        known["torch_compile_backend"] = [kind.value.lower() for kind in DynamoBackend if kind.value != "NO"]
    if values.get("torch_compile_mode"):
        from torch import _inductor  # its import takes seconds

        known["torch_compile_mode"] = [*_inductor.list_mode_options()]
    for name, names in known.items():
        if values[name].lower() not in names:
            raise UsageError(f"--{name} {values[name]} is unknown, expected one of: {', '.join(names)}")
