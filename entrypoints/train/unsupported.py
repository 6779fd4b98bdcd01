"""Fields of transformers' TrainingArguments that this trainer parses but cannot do: each would end in a traceback
in the middle of a job, or do nothing, without a word."""

from __future__ import annotations

from typing import Any

from entrypoints.errors import UsageError

_OWN_METRICS = "is for metrics of one's own, those of train are over all rows"
# The values that are refused, and why; None stands for any that is not empty.
_REASONS: dict[str, tuple[Any, str]] = {
    "eval_do_concat_batches": (False, _OWN_METRICS),
    "eval_use_gather_object": (True, _OWN_METRICS),
    "batch_eval_metrics": (True, _OWN_METRICS),
    "label_names": (None, "is not needed, the task says which columns are labels"),
    "use_liger_kernel": (True, "asks for kernels that run on GPUs"),
    "debug": (None, "has no meaning here: it is for TPUs, or fails on the masks of today's models"),
}


def check(values: dict[str, Any]) -> None:
    """Raises UsageError, with all that is found. `values`: TrainingArguments', as parsed."""
    found = []
    for name, (refused, why) in _REASONS.items():
        value = values.get(name)
        if value is refused if refused is not None else value:
            found.append(f"--{name} {why}: drop it")
    if found:
        raise UsageError("; ".join(found))


def check_made(arguments: Any) -> None:
    """The same for what only TrainingArguments itself makes of the flags."""
    if arguments.dataloader_persistent_workers and not arguments.dataloader_num_workers:
        raise UsageError("--dataloader_persistent_workers needs --dataloader_num_workers above 0, found 0")
    config = arguments.accelerator_config
    if not config.even_batches:
        raise UsageError("--accelerator_config even_batches false: ranks with fewer batches would leave, drop it")
    if config.dispatch_batches:
        raise UsageError("--accelerator_config dispatch_batches true takes batches of one shape only, drop it")
