"""Fields that Hugging Face's TrainingArguments had in older releases ("words"), and their replacements.

`run` and `train` share this list. `run` replaces a word only if the installed transformers does not support it.
`train` also replaces or drops words that have no effect on CPUs.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Callable

from entrypoints.cli.errors import UsageError

_FALSE = frozenset({"false", "0", "no", "n", "f"})


@dataclass(frozen=True)
class Word:
    """A field that TrainingArguments had. `now`: its replacement, None if it is dropped.

    `gone`: the version of transformers that removed the field. None if scripts can still use it, or never could:
    only `train` replaces those. `value`: converts the old field's value. `variable`: the environment variable that
    replaces the field. `in_train`: the replacement in `train`, if not `now`.
    """

    name: str
    gone: str | None
    now: str | None
    why: str
    value: Callable[[str], str] | None = None
    variable: str | None = None
    in_train: str | None = None

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

    @property
    def of_train(self) -> Word:
        """The word with its replacement in `train`."""
        return replace(self, now=self.in_train, why=_RENAMED) if self.in_train else self


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
_RUN_BACKEND = "`run --backend` selects the backend"
_NO_FP16 = "CPUs have no fast fp16"

# `run` drops it only if its value is ccl (see adapt.arguments).
DDP_BACKEND = Word("ddp_backend", "5.1.0", None, _RUN_BACKEND, in_train="backend")
WORDS = (
    DDP_BACKEND,
    Word("no_cuda", "5.0.0", "use_cpu", "it is implied on CPUs"),
    Word("xpu_backend", "4.32.0", None, _RUN_BACKEND, in_train="backend"),
    Word("use_ipex", "4.57.0", None, "torch now includes IPEX's optimizations"),
    Word("evaluation_strategy", "4.52.0", "eval_strategy", _RENAMED),
    Word("per_gpu_train_batch_size", "5.0.0", "per_device_train_batch_size", _RENAMED),
    Word("per_gpu_eval_batch_size", "5.0.0", "per_device_eval_batch_size", _RENAMED),
    Word("warmup_ratio", "5.15.0", "warmup_steps", "a number below 1 is the share of all steps"),
    Word(
        "group_by_length", "5.0.0", "train_sampling_strategy", "its value is group_by_length",
        value=lambda given: "random" if given.lower() in _FALSE else "group_by_length",
    ),
    Word("fp16", None, "bf16", _NO_FP16),
    Word("fp16_full_eval", None, "bf16_full_eval", _NO_FP16),
    Word("half_precision_backend", "5.0.0", None, "--bf16 is enough"),
    Word("fp16_backend", "5.0.0", None, "--bf16 is enough"),
    Word("fp16_opt_level", "5.0.0", None, "it was for NVIDIA's Apex"),
    Word("jit_mode_eval", "5.0.0", None, "evaluation is no longer traced"),
    Word("save_safetensors", "5.0.0", None, "weights are always written as safetensors"),
    Word("logging_dir", "5.15.0", None, "it names tensorboard's folder", variable="TENSORBOARD_LOGGING_DIR"),
    Word("auto_find_batch_size", None, None, "a rank that runs out of memory is killed and cannot retry"),
    Word("local_rank", None, None, "the launcher's variables define the rank"),
    Word("max_length", None, "max_seq_length", _RENAMED),
    Word("task_name", None, "dataset_config_name", f"with --dataset_name {GLUE}", value=_glue),
    Word("overwrite_output_dir", "5.0.0", None, "scripts can still read its value"),
)  # fmt: skip


@dataclass(frozen=True)
class Found:
    """A word on the command line, and its value: `true` for a flag without a value."""

    word: Word
    value: str

    @property
    def is_true(self) -> bool:
        return self.value.lower() not in _FALSE

    def export(self, environ: MutableMapping[str, str]) -> None:
        """Set the environment variable that replaces the word, unless the user has set it."""
        if self.word.variable:
            environ.setdefault(self.word.variable, self.value)


# The flags of `train` that select the process group's backend.
BACKENDS = frozenset({"backend", *(word.name for word in WORDS if word.in_train == "backend")})


def name_of(argument: str) -> str:
    """`--Use-ipex=true` -> `Use_ipex`; empty if not a long flag."""
    return argument[2:].partition("=")[0].replace("-", "_") if argument.startswith("--") else ""


def rewrite(arguments: Sequence[str], active: Mapping[str, Word]) -> tuple[list[str], list[Found]]:
    """The arguments with the words in `active` replaced or dropped, and the words found."""
    kept: list[str] = []
    found: list[Found] = []
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        word = active.get(name_of(argument))
        if word is None:
            kept.append(argument)
            continue
        _, equals, given = argument.partition("=")
        if not equals and rest and not rest[0].startswith("--"):
            equals, given = "=", rest.pop(0)
        item = Found(word, given if equals else "true")
        found.append(item)
        if word.now is not None:
            kept.append(f"--{word.now}={word.value(item.value) if word.value else item.value}")
    return kept, found


def rewrite_fields(values: Mapping[str, Any], active: Mapping[str, Word]) -> tuple[dict[str, Any], list[Found]]:
    """`rewrite` for the fields of a configuration file or a call. Fields already present keep their values."""
    kept: dict[str, Any] = {name: value for name, value in values.items() if name not in active}
    found: list[Found] = []
    for name in (name for name in values if name in active):
        word, value = active[name], values[name]
        if value is None:
            continue
        found.append(Found(word, str(value)))
        if word.now is not None:
            kept.setdefault(word.now, word.value(str(value)) if word.value else value)
    return kept, found
