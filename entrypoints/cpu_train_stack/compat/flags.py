"""Old flags: fields that Hugging Face's TrainingArguments had in older releases, and their replacements.

This is the only list; `run` and `train` share it. `run` replaces a flag only if the installed transformers does
not support it. `train` also replaces or drops flags that have no effect on CPUs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Callable

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.numbers import whole_number

_FALSE = frozenset({"false", "0", "no", "n", "f"})
_NOTHING = frozenset({"none", "0", "0.0"})


@dataclass(frozen=True)
class OldFlag:
    """A field that TrainingArguments had. `now`: its replacement, None if the flag is dropped.

    `gone`: the version of transformers that removed the field. None if scripts can still use it, or never could:
    only `train` replaces such flags. `value`: converts the value. `variable`: the environment variable that
    replaces the flag. `only`: the only values with which `run` replaces the flag. `in_train`: the replacement in
    `train`, if not `now`. `train_keeps`: `train` leaves the flag to releases that support it, because there the
    replacement does not exist or has another meaning. `key`: the flag has become this key of the object `now`.
    `harmless`: the only values that can be dropped; others are refused with `why`. `default`: of the field, for
    scripts that read it. `upstream`: the change that removed the field, where known.
    """

    name: str
    gone: str | None
    now: str | None
    why: str
    value: Callable[[str], Any] | None = None
    variable: str | None = None
    only: tuple[str, ...] = ()
    in_train: str | None = None
    train_keeps: bool = False
    key: str | None = None
    harmless: frozenset[str] | None = None
    default: Any = None
    upstream: str = ""

    @property
    def adaptation(self) -> str:
        """The name for --no-adapt."""
        return self.name.replace("_", "-")

    @property
    def line(self) -> str:
        """The note for the user."""
        key = f" with the key {self.key}" if self.key else ""
        now = f"has become --{self.now}{key}" if self.now else "is dropped"
        if self.now == self.name:
            now = "gets another value"
        if self.variable:
            now = f"has become the variable {self.variable}"
        return f"--{self.name} {now}: {self.why}"

    @property
    def adds(self) -> bool:
        """Whether the replacement keeps its other values."""
        return bool(self.key) or self.now in (self.name, "include_for_metrics")

    def yields_to(self, before: Any) -> bool:
        """Whether the replacement keeps `before`, its value so far.

        In transformers 4, steps win over --warmup_ratio. Steps below 1 are a ratio that was set before.
        """
        return self.name == "warmup_ratio" and isinstance(before, (int, float)) and before >= 1

    def resolved(self, given: Mapping[str, Any]) -> OldFlag:
        """The flag, dropped if its replacement is in `given` with a value other than 0.

        `--warmup_steps 0` does not count: transformers 4 then used --warmup_ratio.
        """
        if self.now is None or self.adds:
            return self
        if str(given.get(self.now)).lower() in _NOTHING:
            return self
        return replace(self, now=None, why=f"--{self.now} is given")

    @property
    def of_train(self) -> OldFlag:
        """The flag with its replacement in `train`."""
        return replace(self, now=self.in_train, why=_RENAMED, only=()) if self.in_train else self

    def check(self, value: Any) -> None:
        """Raise UsageError for a value that asks for what no longer exists."""
        if self.harmless is not None and str(value).lower() not in self.harmless:
            raise UsageError(f"--{self.name} {value}: {self.why}")


# The subsets of GLUE on the hub, by run_glue's names of the tasks.
_GLUE = ("cola", "mnli", "mrpc", "qnli", "qqp", "rte", "sst2", "stsb", "wnli")
GLUE = "nyu-mll/glue"


def _glue(given: str) -> str:
    if given.lower() not in _GLUE:
        raise UsageError(
            f"--task_name {given}: expected a GLUE task ({', '.join(_GLUE)}): for other data, use --dataset_name"
        )
    return given.lower()


def is_true(given: str) -> bool:
    return given.lower() not in _FALSE


def _share(given: str) -> float:
    try:
        share = float(given) if given.isascii() else -1.0
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise UsageError(f"--warmup_ratio {given}: expected a number from 0 to 1, the share of all steps")
    return min(share, math.nextafter(1.0, 0.0))  # as steps, 1 is one step


def _parameters(given: str) -> int:
    number = whole_number(given)
    if number is None:
        raise UsageError(f"--fsdp_min_num_params {given}: expected a number of parameters")
    return number


def _optimizer(given: str) -> str:
    if given.endswith("apex_fused"):
        raise UsageError(f"--optim {given} needs NVIDIA's Apex: use --optim adamw_torch")
    return "adamw_torch"


_RENAMED = "it was renamed"
_SHARED = "`train` uses this name"
_RUN_BACKEND = "`run --backend` selects the backend"
_NO_FP16 = "CPUs have no fast fp16"
_DEVICES = "the ranks are CPU processes of the launcher"
_MOVED = "it has moved there"

DDP_BACKEND = OldFlag("ddp_backend", "5.1.0", None, _RUN_BACKEND, only=("ccl", "nccl"), in_train="backend")
FLAGS = (
    DDP_BACKEND,
    OldFlag("no_cuda", "5.0.0", "use_cpu", "it is implied on CPUs", default=False),
    OldFlag("xpu_backend", "4.32.0", None, _RUN_BACKEND, in_train="backend"),
    OldFlag("use_ipex", "4.57.0", None, "torch now includes IPEX's optimizations", default=False),
    OldFlag("evaluation_strategy", "4.52.0", "eval_strategy", _RENAMED),
    OldFlag("per_gpu_train_batch_size", "5.0.0", "per_device_train_batch_size", _RENAMED),
    OldFlag("per_gpu_eval_batch_size", "5.0.0", "per_device_eval_batch_size", _RENAMED),
    OldFlag(
        "warmup_ratio", "5.15.0", "warmup_steps", "a number below 1 is the share of all steps", value=_share,
        train_keeps=True, default=0.0,
    ),
    OldFlag(
        "group_by_length", "5.0.0", "train_sampling_strategy", "grouping by length is one of its values",
        value=lambda given: "group_by_length" if is_true(given) else "random", train_keeps=True, default=False,
    ),
    OldFlag("fp16", None, "bf16", _NO_FP16),
    OldFlag("fp16_full_eval", None, "bf16_full_eval", _NO_FP16),
    OldFlag(
        "adafactor", "5.0.0", "optim", "Adafactor is one of its values",
        value=lambda given: "adafactor" if is_true(given) else "adamw_torch", train_keeps=True, default=False,
    ),
    OldFlag(
        "half_precision_backend", "5.0.0", None, "--bf16 is enough", default="auto",
        upstream="huggingface/transformers#41404",
    ),
    OldFlag("fp16_backend", "5.0.0", None, "--bf16 is enough", default="auto"),
    OldFlag("fp16_opt_level", "5.0.0", None, "it was for NVIDIA's Apex", default="O1"),
    OldFlag("jit_mode_eval", "5.0.0", None, "evaluation is no longer traced", default=False),
    OldFlag("save_safetensors", "5.0.0", None, "weights are always written as safetensors", default=True),
    OldFlag(
        "logging_dir", "5.15.0", None, "it names tensorboard's folder",
        variable="TENSORBOARD_LOGGING_DIR", train_keeps=True,
    ),
    OldFlag("auto_find_batch_size", None, None, "a rank that runs out of memory is killed and cannot retry"),
    OldFlag("local_rank", None, None, "the launcher's variables define the rank"),
    OldFlag("max_length", None, "max_seq_length", _RENAMED),
    OldFlag("max_source_length", None, "max_seq_length", _SHARED),
    OldFlag("val_max_target_length", None, "generation_max_length", _SHARED),
    OldFlag("generation_num_beams", None, "num_beams", _SHARED),
    OldFlag("task_name", None, "dataset_config_name", f"with --dataset_name {GLUE}", value=_glue),
    OldFlag(
        "overwrite_output_dir", "5.0.0", None, "scripts can still read its value", train_keeps=True, default=False
    ),
    *(
        OldFlag(name, "5.0.0", None, why, train_keeps=True, default=default)
        for name, why, default in (
            ("tpu_num_cores", _DEVICES, None),
            ("tpu_metrics_debug", "it was for TPUs", False),
            ("use_mps_device", _DEVICES, False),
            ("mp_parameters", "it was for SageMaker", ""),
            ("ray_scope", "it was for Ray Tune, which transformers no longer calls", "last"),
            ("use_legacy_prediction_loop", "Trainer has one evaluation loop", False),
        )
    ),
    OldFlag(
        "past_index", "5.0.0", None, "Trainer no longer passes a model's past states on: remove it, or use a pin "
        "with transformers 4", harmless=frozenset({"-1", "none"}), train_keeps=True, default=-1,
        upstream="huggingface/transformers#41384",
    ),
    OldFlag(
        "sharded_ddp", "4.35.0", None, "fairscale's sharding was removed: use --fsdp full_shard",
        harmless=frozenset({"", "false", "none", "[]"}), train_keeps=True, default="",
    ),
    OldFlag(
        "tp_size", "4.52.0", None, "it has become --parallelism_config, which needs GPUs: remove it",
        harmless=frozenset({"0", "1", "none"}), train_keeps=True, default=0,
    ),
    OldFlag("torchdynamo", "5.0.0", "torch_compile_backend", _RENAMED, train_keeps=True),
    OldFlag("push_to_hub_token", "5.0.0", "hub_token", _RENAMED, train_keeps=True),
    OldFlag("push_to_hub_model_id", "5.0.0", "hub_model_id", _RENAMED, train_keeps=True),
    OldFlag(
        "push_to_hub_organization", "5.0.0", "hub_model_id", "the model's name begins with it", train_keeps=True
    ),
    OldFlag(
        "include_inputs_for_metrics", "5.0.0", "include_for_metrics", "it is one of its values",
        value=lambda given: "inputs" if is_true(given) else None, train_keeps=True, default=False,
    ),
    OldFlag(
        "include_tokens_per_second", "5.0.0", "include_num_input_tokens_seen", "it measures the same",
        value=lambda given: "all" if is_true(given) else None, train_keeps=True, default=False,
        upstream="huggingface/transformers#41404",
    ),
    OldFlag(
        "dispatch_batches", "4.51.0", "accelerator_config", _MOVED, key="dispatch_batches", value=is_true,
        train_keeps=True,
    ),
    OldFlag(
        "split_batches", "4.51.0", "accelerator_config", _MOVED, key="split_batches", value=is_true,
        train_keeps=True,
    ),
    OldFlag(
        "fsdp_min_num_params", "5.0.0", "fsdp_config", _MOVED, key="min_num_params", value=_parameters,
        train_keeps=True, default=0,
    ),
    OldFlag(
        "fsdp_transformer_layer_cls_to_wrap", "5.0.0", "fsdp_config", _MOVED, key="transformer_layer_cls_to_wrap",
        value=lambda given: [given], train_keeps=True,
    ),
    OldFlag(
        "optim", "4.50.0", "optim", "adamw_hf is now adamw_torch", value=_optimizer,
        only=("adamw_hf", "adamw_apex_fused"),
    ),
    OldFlag("report_to", "5.0.0", "report_to", "None is now none", value=str.lower, only=("None",)),
)  # fmt: skip
# The flags of `train` that select the process group's backend.
BACKENDS = frozenset({"backend", *(flag.name for flag in FLAGS if flag.in_train == "backend")})
