"""Flags and values that this trainer, this image or the model does not support.

Without these checks, such a flag would cause a traceback during the job, or silently do nothing.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
import shutil
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

from cpu_train_stack import contract
from cpu_train_stack.cli.errors import UsageError, one_line
from cpu_train_stack.cli.numbers import whole_number

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


@dataclass(frozen=True)
class _Range:
    """The numbers from `low` to `high` that a flag takes. `ends`: round brackets exclude an end.

    `hint`: what else to do. A number without a natural limit has a far one: infinity and slips of the keyboard are
    beyond it.
    """

    low: float
    high: float
    ends: str = "[]"
    hint: str = ""

    def __contains__(self, number: float) -> bool:  # NaN is in no range
        excluded = {
            end for end, bracket in ((self.low, self.ends[0]), (self.high, self.ends[1])) if bracket in "()"
        }
        return self.low <= number <= self.high and number not in excluded

    def __str__(self) -> str:
        low = f"{'above' if self.ends[0] == '(' else 'from'} {self.low}"
        return f"a number {low} {'and below' if self.ends[1] == ')' else 'to'} {self.high}{self.hint}"


_MOST = 2**31 - 1  # also the largest C int, which libraries use
_COUNT = _Range(1, _MOST)
_WORKERS = _Range(0, 1024)
_NO_LIMIT = -1  # the default of --max_steps
_SIZE = _Range(0, 1_000_000)
# Flags and the numbers that they take.
_RANGES: tuple[tuple[tuple[str, ...], _Range], ...] = (
    (("max_seq_length", "max_target_length", "generation_max_length", "max_answer_length", "n_best_size"), _COUNT),
    (("max_train_samples", "max_eval_samples", "gradient_accumulation_steps", "eval_accumulation_steps"), _COUNT),
    (("per_device_train_batch_size", "per_device_eval_batch_size", "dataloader_prefetch_factor"), _COUNT),
    (("per_gpu_train_batch_size", "per_gpu_eval_batch_size", "lora_alpha", "torch_empty_cache_steps"), _COUNT),
    (("doc_stride",), _Range(0, _MOST)),
    (("warmup_steps", "eval_delay"), _Range(0, _MOST)),
    (("num_beams", "lora_r"), _Range(1, 65536)),
    (("ddp_bucket_cap_mb",), _Range(1, 1 << 20)),
    (("num_train_epochs",), _Range(0, 1_000_000, "(]")),
    (("ddp_timeout",), _Range(0, 10_000_000, "(]")),
    (("logging_steps",), _Range(0, _MOST, "(]", ", or --logging_strategy no")),
    (("eval_steps",), _Range(0, _MOST, "(]", ", or --eval_strategy no")),
    (("save_steps",), _Range(0, _MOST, "(]", ", or --save_strategy no")),
    (("save_total_limit",), _Range(1, _MOST)),
    (("max_steps",), _Range(1, _MOST, hint=": remove it to train for --num_train_epochs")),
    (("dataloader_num_workers",), _WORKERS),
    (("learning_rate", "weight_decay", "adam_epsilon", "neftune_noise_alpha"), _SIZE),
    (("max_grad_norm",), _Range(0, 1_000_000, hint="; 0 does not clip the gradients")),
    (("null_score_diff_threshold",), _Range(-1_000_000, 1_000_000)),
    (("adam_beta1", "adam_beta2", "lora_dropout"), _Range(0, 1, "[)")),
    (("label_smoothing_factor", "warmup_ratio"), _Range(0, 1)),
    (("mlm_probability",), _Range(0, 1, "()")),
    (("seed",), _Range(0, 2**32 - 1)),  # NumPy's
    (("data_seed",), _Range(-(2**63), 2**63 - 1)),
)
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


def check_ranges(values: dict[str, Any]) -> None:
    """Raise UsageError for a number outside of its range. `values`: of all flags; an older release has fewer."""
    given = {name: value for name, value in values.items() if value is not None}
    if given.get("max_steps") == _NO_LIMIT:
        del given["max_steps"]
    for names, expected in _RANGES:
        for name in names:
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
