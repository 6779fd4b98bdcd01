"""Fields of transformers' TrainingArguments that this trainer parses but does not support.

Without these checks, each would fail with a traceback during the job, or silently do nothing.
"""

from __future__ import annotations

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
