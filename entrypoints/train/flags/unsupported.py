"""Flags of transformers' TrainingArguments that this trainer or this image does not support.

Without these checks, each would fail with a traceback during the job, or silently do nothing.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path
from typing import Any

from entrypoints.cli.errors import UsageError

_CUSTOM_METRICS = "is for custom metrics, train computes its metrics over all rows"
# The values that are refused, and why. None stands for any non-empty value.
_REASONS: dict[str, tuple[Any, str]] = {
    "eval_do_concat_batches": (False, _CUSTOM_METRICS),
    "eval_use_gather_object": (True, _CUSTOM_METRICS),
    "batch_eval_metrics": (True, _CUSTOM_METRICS),
    "label_names": (None, "is not needed, the task determines the label columns"),
    "use_liger_kernel": (True, "needs a GPU"),
    "debug": (None, "is not supported: it is for TPUs, or fails on the attention masks of current models"),
}
_OFF = frozenset({"", "false", "no", "0", "none"})
_ON = frozenset({"true", "yes", "1", "full_shard", "full_shard auto_wrap"})


def check(values: dict[str, Any]) -> None:
    """Raises UsageError that lists every unsupported flag. `values`: the parsed fields of TrainingArguments."""
    found = []
    for name, (refused, why) in _REASONS.items():
        value = values.get(name)
        if value is refused if refused is not None else value:
            found.append(f"--{name} {why}: drop it")
    if found:
        raise UsageError("; ".join(found))


def check_derived(arguments: Any) -> None:
    """Checks of values that TrainingArguments itself derives from the flags."""
    if arguments.dataloader_persistent_workers and not arguments.dataloader_num_workers:
        raise UsageError("--dataloader_persistent_workers needs --dataloader_num_workers above 0, found 0: set it")
    config = arguments.accelerator_config
    if not config.even_batches:
        raise UsageError("--accelerator_config even_batches false: ranks need equal numbers of batches, drop it")
    if config.dispatch_batches:
        raise UsageError("--accelerator_config dispatch_batches true needs batches of one shape, drop it")


def wants_sharding(value: Any) -> bool:
    """Whether `--fsdp` asks for FSDP2. Raises UsageError for other kinds of sharding."""
    text = str(value if value is not None else "").strip().lower()
    if text in _OFF:
        return False
    if text in _ON:
        return True
    raise UsageError(f"--fsdp '{value}': expected full_shard, the only kind of sharding that works on CPU ranks")


def check_compiler(values: dict[str, Any]) -> None:
    """Raises UsageError if the tools for compilation are missing. `values`: the fields of TrainingArguments."""
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
        raise UsageError(f"--torch_compile needs {' and '.join(missing)}, not found in this image: drop the flag")


def check_compiler_names(values: dict[str, Any]) -> None:
    """Raises UsageError for an unknown backend or mode. Needs accelerate and torch's compiler."""
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
