"""Fields of TrainingArguments that transformers 4 had and this release lacks: run by the tests, unmodified."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import HfArgumentParser, Seq2SeqTrainingArguments, TrainingArguments

from cpu_train_stack.cli.errors import UsageError

recorded = json.loads((Path(__file__).parent / "transformers_4_fields.json").read_text())
names = {field.name for field in dataclasses.fields(Seq2SeqTrainingArguments)}
removed = {name: ast.literal_eval(row[2]) for name, row in recorded.items() if name not in names}
wrong: dict[str, Any] = {}


def other(name: str, default: Any) -> Any:
    """A value that is not the default."""
    if isinstance(default, (bool, int, float)):
        return not default if isinstance(default, bool) else default + 1
    return "steps" if name == "evaluation_strategy" else "1"


def lines(make: Callable[..., Any], *arguments: Any, **options: Any) -> list[str]:
    """The notes and the error of a call."""
    printed = io.StringIO()
    with contextlib.redirect_stderr(printed):
        try:
            make(*arguments, **options)
        except (UsageError, SystemExit, TypeError, ValueError) as error:
            printed.write(f"refused: {error}\n")
    return [line for line in printed.getvalue().splitlines() if line.startswith(("adapted", "refused"))]


lines(TrainingArguments, "/tmp/o")  # a note about all arguments: --use_cpu is implied
for name, default in removed.items():
    given = {name: other(name, default)}
    told = lines(Seq2SeqTrainingArguments, "/tmp/o", report_to=[], **given)
    if len(told) != 1 or f": --{name} " not in told[0]:
        wrong[f"{name} other"] = told
    for way in ("default", "none", "unset", "flag"):
        values = {"default": {name: default}, "none": {name: None}}.get(way, {})
        words = [] if default in (None, "") else [f"--{name}={default}"]
        try:
            if way == "flag":
                parser: Any = HfArgumentParser([TrainingArguments])
                (args,) = parser.parse_args_into_dataclasses(["--output_dir=/tmp/o", *words])
            else:
                args = TrainingArguments("/tmp/o", report_to=[], **values)
            found = getattr(args, name)
        except (TypeError, ValueError, AttributeError, SystemExit) as error:
            found = f"{type(error).__name__}: {error}"
        same = default if name not in ("evaluation_strategy", "logging_dir") else found
        if found != same and not (default is None and found == getattr(args.accelerator_config, name, None)):
            wrong[f"{name} {way}"] = found
    if default in (None, ""):  # the flag had no value above; the note is printed only once
        parse = HfArgumentParser([Seq2SeqTrainingArguments]).parse_args_into_dataclasses
        again = lines(parse, ["--output_dir=/tmp/o", f"--{name}={given[name]}"])
        if not set(again) <= set(told):
            wrong[f"{name} other flag"] = again
args = TrainingArguments(
    "/tmp/folder",
    report_to=[],
    optim="adamw_hf",
    push_to_hub_model_id="model",
    push_to_hub_organization="organization",
    push_to_hub_token="token",  # noqa: S106
    fsdp_min_num_params=3,
    fsdp_transformer_layer_cls_to_wrap="Layer",
    dispatch_batches=False,
    split_batches=True,
    accelerator_config={"even_batches": False},
    include_inputs_for_metrics=True,
    include_for_metrics=["loss"],
    include_tokens_per_second=True,
)
line = (
    "--output_dir /tmp/folder --optim adamw_hf --dispatch_batches False --split_batches --past_index -1 "
    "--push_to_hub_organization organization --include_inputs_for_metrics --tpu_metrics_debug"
)
(parsed,) = HfArgumentParser([TrainingArguments]).parse_args_into_dataclasses(line.split())
parsed.evaluation_strategy = "epoch"


@dataclasses.dataclass
class Own(TrainingArguments):
    extra: int = 1


@dataclasses.dataclass
class Redefined(Own):
    """As QLoRA's script does."""

    group_by_length: bool = True
    warmup_ratio: float = 0.03
    evaluation_strategy: str = "steps"


create: Any = Own
own = create("/tmp/o", evaluation_strategy="epoch", no_cuda=True, dispatch_batches=False, report_to=None, extra=2)
redefined = Redefined("/tmp/o", report_to=[])
overridden = Redefined("/tmp/o", report_to=[], evaluation_strategy="no", eval_strategy="epoch", warmup_ratio=0)
old: dict[str, Any] = {"evaluation_strategy": "no", "per_gpu_train_batch_size": 3, "warmup_ratio": 1.0}
changed = dataclasses.replace(own, **old)
assigned = TrainingArguments("/tmp/o", report_to=[])
assigned.group_by_length, assigned.warmup_ratio, assigned.per_gpu_train_batch_size = True, 0.5, 2
first = [assigned.train_sampling_strategy, assigned.get_warmup_steps(10)]
# In transformers 4, steps win over a ratio, whenever each of them is set.
stepped = TrainingArguments("/tmp/o", report_to=[], warmup_steps=500)
ratios: dict[str, Any] = {"warmup_ratio": 0.1}
warmups = {"replaced": dataclasses.replace(stepped, **ratios).get_warmup_steps(1000)}
stepped.warmup_ratio = 0.1
warmups["assigned"] = stepped.get_warmup_steps(1000)
assigned.warmup_ratio = 0.25
warmups["assigned again"] = assigned.get_warmup_steps(1000)
assigned.warmup_ratio = 0.0
warmups["assigned 0"] = assigned.get_warmup_steps(1000)
scheduled: Any = TrainingArguments("/tmp/o", report_to=[])
calls: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "method": ((), {"warmup_ratio": 0.1}),
    "method, both": ((), {"warmup_ratio": 0.1, "warmup_steps": 30}),
    "method, in order": (("cosine", 3, -1, 0.2, 0), {}),
    "method, new": (("cosine", 3, -1, 0.3), {}),
}
for name, (positional, values) in calls.items():
    warmups[name] = scheduled.set_lr_scheduler(*positional, **values).get_warmup_steps(1000)
scheduled.set_evaluate("steps", jit_mode=True).set_testing(16, jit_mode=False)
scheduled.set_evaluate("steps", 500, 8, None, None, False, True).set_testing(16, False, True)
assigned.group_by_length = False
(unsafe,) = HfArgumentParser([TrainingArguments]).parse_args_into_dataclasses(
    ["--output_dir=/tmp/o", "--no_save_safetensors"]
)
print(
    json.dumps(
        {
            "count": len(removed),
            "wrong": wrong,
            "called": [
                *(args.optim.value, args.hub_model_id, args.hub_token, args.fsdp_config),
                [args.accelerator_config.dispatch_batches, args.accelerator_config.split_batches],
                [args.accelerator_config.even_batches, args.include_for_metrics],
                args.include_num_input_tokens_seen,
            ],
            "parsed": [
                *(parsed.optim.value, parsed.hub_model_id, parsed.accelerator_config.dispatch_batches),
                *(parsed.accelerator_config.split_batches, parsed.include_for_metrics, parsed.tpu_metrics_debug),
                parsed.eval_strategy,
            ],
            "subclass": [
                *(own.eval_strategy, own.accelerator_config.dispatch_batches, own.report_to),
                *(own.no_cuda, own.extra),
                *(redefined.eval_strategy, redefined.train_sampling_strategy, redefined.warmup_steps),
                *(overridden.eval_strategy, overridden.warmup_steps),
            ],
            "replaced": [
                *(changed.eval_strategy, changed.train_batch_size, changed.get_warmup_steps(100), changed.extra),
                changed.accelerator_config.dispatch_batches,
            ],
            "assigned": [
                *(first, assigned.train_sampling_strategy, assigned.train_batch_size),
                *(scheduled.eval_strategy, scheduled.eval_batch_size, unsafe.save_safetensors),
            ],
            "warmups": warmups,
        }
    ),
    flush=True,
)
TrainingArguments("/tmp/o", sharded_ddp="simple")
