"""Create Hugging Face's TrainingArguments from the parsed flags, after the process group exists.

accelerate, which TrainingArguments sets up, would otherwise create its own process group.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Callable, cast

from cpu_train_stack import contract
from cpu_train_stack.cli.errors import UsageError, one_line
from cpu_train_stack.train.flags import unsupported
from cpu_train_stack.train.flags.arguments import Parsed

if TYPE_CHECKING:
    from transformers import TrainingArguments

# The ends of these metrics' names. transformers knows only the loss.
_LOWER_IS_BETTER = ("loss", "perplexity", "mae", "mse")
# The flag's name in transformers 5 takes precedence.
_RECOMPUTATION = ("activation_checkpointing_kwargs", "gradient_checkpointing_kwargs")


@contextlib.contextmanager
def changed(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Give an attribute, such as a field of TrainingArguments, another value inside the block."""
    original = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)


def is_better_if_greater(metric: str) -> bool:
    """Whether a greater value of this metric is better, with or without `eval_` before its name."""
    return not metric.endswith(_LOWER_IS_BETTER)


def check_metric(name: str | None, metrics: Collection[str]) -> None:
    """Raise UsageError if --metric_for_best_model is not among the names of an evaluation's metrics."""
    known = sorted(metric[len("eval_") :] for metric in metrics if metric.startswith("eval_"))
    if name and name.removeprefix("eval_") not in known:
        raise UsageError(f"--metric_for_best_model '{name}' is unknown, expected one of: {', '.join(known)}")


def without_tokens(arguments: object) -> dict[str, Any]:
    """What pickle stores of TrainingArguments: Trainer writes training_args.bin, which --push_to_hub publishes."""
    return {name: None if name.endswith("_token") else value for name, value in vars(arguments).items()}


def create(parsed: Parsed) -> TrainingArguments:
    """Raises UsageError for combinations that Hugging Face refuses."""
    from transformers import TrainingArguments

    cast("Any", TrainingArguments).__getstate__ = without_tokens
    values = dict(parsed.training)
    parsed.cleaned.export()
    # Otherwise accelerate would not detect a distributed CPU job: every rank would train alone on all rows.
    values["use_cpu"] = True
    if not values["do_eval"] and "eval_strategy" not in parsed.given:
        values["eval_strategy"] = "no"
    follow_evaluations(values, parsed.given)
    if values["metric_for_best_model"] and values["greater_is_better"] is None:
        values["greater_is_better"] = is_better_if_greater(values["metric_for_best_model"])
    if values["data_seed"] is None:
        # The order of the data must be the same on every rank. torch's generator differs between ranks.
        values["data_seed"] = values["seed"]
    if "average_tokens_across_devices" in values and "average_tokens_across_devices" not in parsed.given:
        # Otherwise, ranks with few tokens would have as much weight as ranks with many.
        values["average_tokens_across_devices"] = True
    if "dataloader_num_workers" not in parsed.given:
        values["dataloader_num_workers"] = unsupported.workers(os.environ.get(contract.DATALOADER_WORKERS) or "0")
    _check_reports(values["report_to"])
    unsupported.check_compiler_names(values)
    unsupported.check_compiler(values)
    # loop/progress.py prints the progress; Hugging Face would print dictionaries.
    values["disable_tqdm"] = True
    values.pop("ddp_backend")
    values.pop("fsdp", None)  # Trainer would use accelerate's FSDP, which does nothing on CPUs
    try:
        arguments = TrainingArguments(**values)
    except json.JSONDecodeError as error:
        raise UsageError(f"the value of a flag is invalid JSON: {error.msg} in '{error.doc}'") from error
    except (ValueError, ImportError, TypeError, OSError) as error:
        # Hugging Face prints its enumerations as IntervalStrategy.STEPS.
        raise UsageError(re.sub(r"\b\w+Strategy\.", "", one_line(error))) from error
    unsupported.check_derived(arguments)
    unsupported.check_recomputation(arguments, next((name for name in _RECOMPUTATION if name in parsed.given), ""))
    if arguments.gradient_checkpointing:
        # The reentrant kind needs inputs with gradients, which the frozen model of an adapter does not have.
        options = {"use_reentrant": False, **(arguments.gradient_checkpointing_kwargs or {})}
        for name in _RECOMPUTATION:
            if hasattr(arguments, name):
                setattr(arguments, name, options)
    options = arguments.lr_scheduler_kwargs or {}
    follows = arguments.lr_scheduler_type in ("reduce_lr_on_plateau", "greedy")
    if follows and arguments.greater_is_better and isinstance(options, dict):  # other values are refused later
        arguments.lr_scheduler_kwargs = {"mode": "max", **options}
    return arguments


def bind_options(schedules: dict[Any, Callable[..., Any]], schedule: Any, options: Mapping[str, Any]) -> None:
    """Give --lr_scheduler_kwargs to transformers' function for a schedule.

    transformers before 4.56 calls the function of inverse_sqrt without them.
    """
    schedules[schedule] = functools.partial(schedules[schedule], **options)


def follow_evaluations(values: dict[str, Any], given: Collection[str]) -> None:
    """With --load_best_model_at_end, save a checkpoint at each evaluation, unless flags say when to save.

    `values`: the fields of TrainingArguments. Raises UsageError for a best model without evaluations.
    """
    best = "load_best_model_at_end" if values["load_best_model_at_end"] else "save_strategy best"
    if values["eval_strategy"] == "no" and (values["load_best_model_at_end"] or values["save_strategy"] == "best"):
        raise UsageError(
            f"--{best} needs evaluations during training: pass --validation_file and --eval_strategy epoch, or "
            f"remove --{best}"
        )
    if values["load_best_model_at_end"] and not {"save_strategy", "save_steps"} & {*given}:
        values["save_strategy"] = values["eval_strategy"]
        values["save_steps"] = values["eval_steps"] or values["logging_steps"]


def _check_reports(names: Any) -> None:
    from transformers.integrations import get_available_reporting_integrations

    available = [*get_available_reporting_integrations(), "none", "all"]
    for name in names if isinstance(names, list) else [names]:
        if name not in available:
            raise UsageError(
                f"--report_to {name} is not installed in this image, expected one of: {', '.join(available)}"
            )
