"""Words of older recipes on the command line of Hugging Face's TrainingArguments, and what they are now.

The only home of the list, for `run` and for `train`. `run` touches a word only where the installed transformers
does not know it: the script is to have what it asks for. `train` also answers those that mean nothing on CPUs.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Callable

from entrypoints.errors import UsageError

_FALSE = frozenset({"false", "0", "no", "n", "f"})


@dataclass(frozen=True)
class Word:
    """A field that TrainingArguments had. `now`: the field with its meaning, None where it has no meaning left.

    `gone`: the version of transformers that lacks it, None where a script can still have it or never could: only
    `train` answers those. `value`: turns the old field's value into the new one's. `variable`: the environment's,
    which has the meaning now. `in_train`: the flag of `train` with the meaning, where that is another than `now`.
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
        """What is said when it was found."""
        now = f"has become --{self.now}" if self.now else "is dropped"
        if self.variable:
            now = f"has become the variable {self.variable}"
        return f"--{self.name} {now}: {self.why}"

    @property
    def of_train(self) -> Word:
        """The same word as `train` understands it."""
        return replace(self, now=self.in_train, why=_MOVED) if self.in_train else self


# The sub-sets of GLUE on the hub, as run_glue names its tasks.
_GLUE = ("cola", "mnli", "mrpc", "qnli", "qqp", "rte", "sst2", "stsb", "wnli")
GLUE = "nyu-mll/glue"


def _glue(given: str) -> str:
    if given.lower() not in _GLUE:
        raise UsageError(
            f"--task_name {given}: expected a task of GLUE ({', '.join(_GLUE)}), or write --dataset_name"
        )
    return given.lower()


_MOVED = "it has another name"
_ITSELF = "`run --backend` names the group's backend"
_NO_FP16 = "CPUs have no fast fp16"

# `run` leaves it out only where its value is ccl: adapt.arguments sees to it.
DDP_BACKEND = Word("ddp_backend", "5.1.0", None, _ITSELF, in_train="backend")
WORDS = (
    DDP_BACKEND,
    Word("no_cuda", "5.0.0", "use_cpu", "it is implied on CPUs"),
    Word("xpu_backend", "4.32.0", None, _ITSELF, in_train="backend"),
    Word("use_ipex", "4.57.0", None, "torch has taken IPEX's optimizations over"),
    Word("evaluation_strategy", "4.52.0", "eval_strategy", _MOVED),
    Word("per_gpu_train_batch_size", "5.0.0", "per_device_train_batch_size", _MOVED),
    Word("per_gpu_eval_batch_size", "5.0.0", "per_device_eval_batch_size", _MOVED),
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
    Word("jit_mode_eval", "5.0.0", None, "evaluation is not traced any more"),
    Word("save_safetensors", "5.0.0", None, "weights are always written as safetensors"),
    Word("logging_dir", "5.15.0", None, "it names tensorboard's folder", variable="TENSORBOARD_LOGGING_DIR"),
    Word("auto_find_batch_size", None, None, "a rank that is out of memory is killed and cannot try again"),
    Word("local_rank", None, None, "the launcher's variables tell the rank"),
    Word("max_length", None, "max_seq_length", _MOVED),
    Word("task_name", None, "dataset_config_name", f"with --dataset_name {GLUE}", value=_glue),
    Word("overwrite_output_dir", "5.0.0", None, "the script that reads it is given it"),
)  # fmt: skip


@dataclass(frozen=True)
class Found:
    """A word that was found, and the value that it had: `true` for a switch without one."""

    word: Word
    value: str

    @property
    def is_true(self) -> bool:
        return self.value.lower() not in _FALSE

    def export(self, environ: MutableMapping[str, str]) -> None:
        """Hands the value on to the variable that has the word's meaning now, unless the user set it."""
        if self.word.variable:
            environ.setdefault(self.word.variable, self.value)


# What names the process group's backend on `train`'s command line.
BACKENDS = frozenset({"backend", *(word.name for word in WORDS if word.in_train == "backend")})


def name_of(argument: str) -> str:
    """`--Use-ipex=true` -> `Use_ipex`; empty where it is not a long flag."""
    return argument[2:].partition("=")[0].replace("-", "_") if argument.startswith("--") else ""


def rewrite(arguments: Sequence[str], active: Mapping[str, Word]) -> tuple[list[str], list[Found]]:
    """The arguments with the words of `active` replaced or dropped, and the words found. Nothing else changes."""
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
    """The same for fields by name: a configuration file's, or a call's. A field that is given already stays."""
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
