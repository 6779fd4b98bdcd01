"""Words of older recipes on the command line of Hugging Face's TrainingArguments, and what they are now.

The only home of the list. A word is touched only where the installed transformers does not know it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Callable

_FALSE = frozenset({"false", "0", "no", "n", "f"})


@dataclass(frozen=True)
class Word:
    """A field that TrainingArguments had. `now`: the field with its meaning, None where it has no meaning left.

    `gone`: the version of transformers that lacks it. `value`: turns the old field's value into the new one's.
    """

    name: str
    gone: str
    now: str | None
    why: str
    value: Callable[[str], str] | None = None

    @property
    def adaptation(self) -> str:
        """The name for --no-adapt."""
        return self.name.replace("_", "-")

    @property
    def line(self) -> str:
        """What is said when it was found."""
        now = f"has become --{self.now}" if self.now else "is dropped"
        return f"--{self.name} {now}: {self.why}"


_MOVED = "it has another name"
_ITSELF = "`run --backend` names the group's backend"

WORDS = (
    Word("no_cuda", "5.0.0", "use_cpu", "`run` implies it on CPUs"),
    Word("xpu_backend", "4.32.0", None, _ITSELF),
    Word("use_ipex", "4.57.0", None, "torch has taken IPEX's optimizations over"),
    Word("evaluation_strategy", "4.52.0", "eval_strategy", _MOVED),
    Word("per_gpu_train_batch_size", "5.0.0", "per_device_train_batch_size", _MOVED),
    Word("per_gpu_eval_batch_size", "5.0.0", "per_device_eval_batch_size", _MOVED),
    Word("warmup_ratio", "5.15.0", "warmup_steps", "a number below 1 is the share of all steps"),
    Word(
        "group_by_length", "5.0.0", "train_sampling_strategy", "its value is group_by_length",
        value=lambda given: "random" if given.lower() in _FALSE else "group_by_length",
    ),
    Word("half_precision_backend", "5.0.0", None, "--bf16 is enough"),
    Word("jit_mode_eval", "5.0.0", None, "evaluation is not traced any more"),
    Word("save_safetensors", "5.0.0", None, "weights are always written as safetensors"),
    Word("logging_dir", "5.15.0", None, "the variable TENSORBOARD_LOGGING_DIR names tensorboard's folder"),
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
        found.append(Found(word, str(value)))
        if word.now is not None and value is not None:
            kept.setdefault(word.now, word.value(str(value)) if word.value else value)
    return kept, found
