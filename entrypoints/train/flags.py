"""The flags that people copy from old guides, and the one-line answers to them and to typing errors."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

from entrypoints.errors import UsageError

_GONE = "drop it, it has no meaning on CPU ranks"
_ALWAYS_CPU = "drop it, train always runs on CPUs"

# What to write instead of a flag that transformers removed, or that means something else here.
INSTEAD = {
    "ddp_backend": "write --backend",
    "xpu_backend": "write --backend",
    "evaluation_strategy": "write --eval_strategy",
    "use_ipex": "drop it, this image has no IPEX: torch has taken its optimizations over and runs bf16 by itself",
    "half_precision_backend": "drop it, --bf16 is enough",
    "jit_mode_eval": "drop it",
    "fp16": "write --bf16, CPUs have no fast fp16",
    "fp16_backend": "write --bf16, CPUs have no fast fp16",
    "fp16_full_eval": "write --bf16, CPUs have no fast fp16",
    "warmup_ratio": "write --warmup_steps with a number below 1, which is the share of all steps",
    "logging_dir": "drop it, --report_to tensorboard writes to OUTPUT_DIR/runs",
    "save_safetensors": "drop it, weights are always written as safetensors",
    "per_gpu_train_batch_size": "write --per_device_train_batch_size",
    "per_gpu_eval_batch_size": "write --per_device_eval_batch_size",
    "max_length": "write --max_seq_length",
    "tpu_num_cores": _GONE,
    "deepspeed": _GONE,
    "local_rank": "drop it, the rank comes from the launcher's variables",
    "auto_find_batch_size": _GONE,
    # Datasets of this trainer keep columns for the metrics beside those of the model.
    "remove_unused_columns": "drop it, the columns that the model needs are found by themselves",
}
# Flags that asked for what happens anyway: accepted with a note.
NEEDLESS = {"no_cuda": _ALWAYS_CPU, "use_cpu": _ALWAYS_CPU}
# Flags that newer releases have renamed: the name, and what it is now. Releases that have the old name keep it.
RENAMED = {"group_by_length": ("train_sampling_strategy", "group_by_length")}
_FALSE = frozenset({"false", "0", "no", "n", "f"})


@dataclass(frozen=True)
class Cleaned:
    """The arguments that go on to the parser, and notes for the user about those that were dropped."""

    argv: list[str]
    notes: list[str]


def name_of(argument: str) -> str | None:
    """`--Flag-name=value` -> `flag_name`; None if it is not a long flag."""
    if not argument.startswith("--") or argument == "--":
        return None
    return argument[2:].split("=", 1)[0].replace("-", "_")


def clean(argv: Iterable[str], has_ipex: bool = False, known: frozenset[str] = frozenset()) -> Cleaned:
    """Answers flags of old guides. `has_ipex`: this image is of a pin whose `--use_ipex` still means something;
    `known`: the flags of this image's release.

    Raises UsageError with what to write instead; drops, with a note, those that ask for what happens anyway.
    """
    kept: list[str] = []
    # 4.x has it, and its --warmup_steps takes no share.
    meant = ({"use_ipex"} if has_ipex else set()) | ({"warmup_ratio"} & known)
    notes: list[str] = []
    pending = list(argv)
    while pending:
        argument = pending.pop(0)
        name = name_of(argument)
        if name in INSTEAD and name not in meant:
            raise UsageError(f"--{name} is not a flag of this trainer: {INSTEAD[name]}")
        if name in RENAMED and name not in known:
            if _switch(argument, pending).lower() not in _FALSE:
                now, value = RENAMED[name]
                kept += [f"--{now}", value]
                notes.append(f"--{name} is now --{now} {value}")
            continue
        if name in NEEDLESS:
            value = _switch(argument, pending)
            if value.lower() in _FALSE:
                raise UsageError(f"--{name} {value}: this trainer runs on CPUs only, drop the flag")
            notes.append(f"--{name} is not needed: {NEEDLESS[name]}")
            continue
        kept.append(argument)
    return Cleaned(kept, notes)


def _switch(argument: str, pending: list[str]) -> str:
    """The value of a flag that needs none, taken from `pending` if it stands there."""
    if "=" in argument:
        return argument.split("=", 1)[1]
    return pending.pop(0) if pending and not pending[0].startswith("--") else "true"


def unknown(argument: str, known: Iterable[str]) -> UsageError:
    """The error for an argument that no flag takes, with the nearest known flag."""
    name = name_of(argument)
    if name is None:
        return UsageError(
            f"found '{argument}' where a --flag was expected, or before them all a config file (.yaml); "
            "train --help lists the flags"
        )
    near = _nearest(name, known)
    return UsageError(
        f"unknown flag --{name}: {f'did you mean --{near}?' if near else 'train --help lists the flags'}"
    )


def unknown_key(key: str, known: Iterable[str]) -> str:
    """The same for a key of a config file."""
    near = _nearest(key, known)
    return f"unknown key '{key}': {f'did you mean {near}?' if near else 'train --help lists the keys'}"


def _nearest(name: str, known: Iterable[str]) -> str | None:
    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)), None)
