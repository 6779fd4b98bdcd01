"""Old flags: fields that Hugging Face's TrainingArguments had in older releases, and their replacements.

This is the only list; `run` and `train` share it. `run` replaces a flag only if the installed transformers does
not support it. `train` also replaces or drops flags that have no effect on CPUs.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Callable

from cpu_train_stack.cli.errors import UsageError

_FALSE = frozenset({"false", "0", "no", "n", "f"})
_NOTHING = frozenset({"none", "0", "0.0"})


@dataclass(frozen=True)
class OldFlag:
    """A field that TrainingArguments had. `now`: its replacement, None if the flag is dropped.

    `gone`: the version of transformers that removed the field. None if scripts can still use it, or never could:
    only `train` replaces such flags. `value`: converts the value. `variable`: the environment variable that
    replaces the flag. `only`: the only value with which `run` replaces the flag. `in_train`: the replacement in
    `train`, if not `now`. `train_keeps`: `train` leaves the flag to releases that support it, because there the
    replacement does not exist or has another meaning.
    """

    name: str
    gone: str | None
    now: str | None
    why: str
    value: Callable[[str], str] | None = None
    variable: str | None = None
    only: str | None = None
    in_train: str | None = None
    train_keeps: bool = False

    @property
    def adaptation(self) -> str:
        """The name for --no-adapt."""
        return self.name.replace("_", "-")

    @property
    def line(self) -> str:
        """The note for the user."""
        now = f"has become --{self.now}" if self.now else "is dropped"
        if self.variable:
            now = f"has become the variable {self.variable}"
        return f"--{self.name} {now}: {self.why}"

    def resolved(self, given: Mapping[str, Any]) -> OldFlag:
        """The flag, dropped if its replacement is in `given` with a value other than 0.

        `--warmup_steps 0` does not count: transformers 4 then used --warmup_ratio.
        """
        if self.now is None or str(given.get(self.now)).lower() in _NOTHING:
            return self
        return replace(self, now=None, why=f"--{self.now} is given")

    @property
    def of_train(self) -> OldFlag:
        """The flag with its replacement in `train`."""
        return replace(self, now=self.in_train, why=_RENAMED, only=None) if self.in_train else self


# The subsets of GLUE on the hub, by run_glue's names of the tasks.
_GLUE = ("cola", "mnli", "mrpc", "qnli", "qqp", "rte", "sst2", "stsb", "wnli")
GLUE = "nyu-mll/glue"


def _glue(given: str) -> str:
    if given.lower() not in _GLUE:
        raise UsageError(
            f"--task_name {given}: expected a GLUE task ({', '.join(_GLUE)}): for other data, use --dataset_name"
        )
    return given.lower()


_RENAMED = "it was renamed"
_SHARED = "`train` uses this name"
_RUN_BACKEND = "`run --backend` selects the backend"
_NO_FP16 = "CPUs have no fast fp16"

DDP_BACKEND = OldFlag("ddp_backend", "5.1.0", None, _RUN_BACKEND, only="ccl", in_train="backend")
FLAGS = (
    DDP_BACKEND,
    OldFlag("no_cuda", "5.0.0", "use_cpu", "it is implied on CPUs"),
    OldFlag("xpu_backend", "4.32.0", None, _RUN_BACKEND, in_train="backend"),
    OldFlag("use_ipex", "4.57.0", None, "torch now includes IPEX's optimizations"),
    OldFlag("evaluation_strategy", "4.52.0", "eval_strategy", _RENAMED),
    OldFlag("per_gpu_train_batch_size", "5.0.0", "per_device_train_batch_size", _RENAMED),
    OldFlag("per_gpu_eval_batch_size", "5.0.0", "per_device_eval_batch_size", _RENAMED),
    OldFlag(
        "warmup_ratio", "5.15.0", "warmup_steps", "a number below 1 is the share of all steps", train_keeps=True
    ),
    OldFlag(
        "group_by_length", "5.0.0", "train_sampling_strategy", "grouping by length is one of its values",
        value=lambda given: "random" if given.lower() in _FALSE else "group_by_length", train_keeps=True,
    ),
    OldFlag("fp16", None, "bf16", _NO_FP16),
    OldFlag("fp16_full_eval", None, "bf16_full_eval", _NO_FP16),
    OldFlag(
        "adafactor", "5.0.0", "optim", "Adafactor is one of its values",
        value=lambda given: "adamw_torch" if given.lower() in _FALSE else "adafactor", train_keeps=True,
    ),
    OldFlag("half_precision_backend", "5.0.0", None, "--bf16 is enough"),
    OldFlag("fp16_backend", "5.0.0", None, "--bf16 is enough"),
    OldFlag("fp16_opt_level", "5.0.0", None, "it was for NVIDIA's Apex"),
    OldFlag("jit_mode_eval", "5.0.0", None, "evaluation is no longer traced"),
    OldFlag("save_safetensors", "5.0.0", None, "weights are always written as safetensors"),
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
    OldFlag("overwrite_output_dir", "5.0.0", None, "scripts can still read its value", train_keeps=True),
)  # fmt: skip
# The flags of `train` that select the process group's backend.
BACKENDS = frozenset({"backend", *(flag.name for flag in FLAGS if flag.in_train == "backend")})


@dataclass(frozen=True)
class Found:
    """An old flag on the command line, and its value: `true` for a flag without a value."""

    flag: OldFlag
    value: str

    @property
    def is_true(self) -> bool:
        return self.value.lower() not in _FALSE

    def export(self, environ: MutableMapping[str, str]) -> None:
        """Set the environment variable that replaces the flag, unless the user has set it."""
        if self.flag.variable:
            environ.setdefault(self.flag.variable, self.value)


def name_of(argument: str) -> str:
    """`--Use-ipex=true` -> `Use_ipex`; empty if not a long flag."""
    return argument[2:].partition("=")[0].replace("-", "_") if argument.startswith("--") else ""


def rewrite(arguments: Sequence[str], active: Mapping[str, OldFlag]) -> tuple[list[str], list[Found]]:
    """The arguments with the flags in `active` replaced or dropped, and the flags found.

    If the replacement of an old flag is given too, it keeps its value, unless the value is 0.
    """
    given = _values(arguments)
    kept: list[str] = []
    last: list[str] = []
    found: list[Found] = []
    rest = list(arguments)
    while rest:
        words = [rest.pop(0)]
        flag = active.get(name_of(words[0]))
        _, equals, value = words[0].partition("=")
        if flag and not equals:
            if rest and not rest[0].startswith("--"):
                words.append(rest.pop(0))
            value = words[1] if len(words) > 1 else "true"
        if flag is None or flag.only not in (None, value):
            kept += words
            continue
        flag = flag.resolved(given)
        found.append(Found(flag, value))
        if flag.now is not None:
            replaced = (
                last if flag.now in given else kept
            )  # parsers use the last value of a flag that is given twice
            replaced.append(f"--{flag.now}={flag.value(value) if flag.value else value}")
    return kept + last, found


def _values(arguments: Sequence[str]) -> dict[str, str]:
    """The value of each flag by its name; `true` for a flag without a value."""
    values = {}
    for word, following in zip(arguments, [*arguments[1:], "--"]):
        _, equals, value = word.partition("=")
        values[name_of(word)] = value if equals else "true" if following.startswith("--") else following
    return values


def rewrite_fields(values: Mapping[str, Any], active: Mapping[str, OldFlag]) -> tuple[dict[str, Any], list[Found]]:
    """`rewrite` for the fields of a configuration file or a call."""
    kept: dict[str, Any] = {name: value for name, value in values.items() if name not in active}
    found: list[Found] = []
    for name in (name for name in values if name in active):
        flag, value = active[name].resolved(kept), values[name]
        if value is None:
            continue
        found.append(Found(flag, str(value)))
        if flag.now is not None:
            kept[flag.now] = flag.value(str(value)) if flag.value else value
    return kept, found
