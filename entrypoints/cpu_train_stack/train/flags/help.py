"""`train --help` and `--print-config`: this trainer's flags and the most used flags of Hugging Face, in groups."""

from __future__ import annotations

import argparse
import textwrap
from typing import Any

from cpu_train_stack.cli import config_files
from cpu_train_stack.train.flags.arguments import Parsed, Tasks, make_parser

_GROUPS = {
    "model and data": (
        "model_name_or_path tokenizer_name model_revision task train_file validation_file dataset_name "
        "dataset_config_name text_column_names label_column_name max_train_samples max_eval_samples"
    ),
    "inputs": "max_seq_length train_sampling_strategy pad_to_max_length",
    "training": (
        "do_train do_eval bf16 num_train_epochs max_steps per_device_train_batch_size gradient_accumulation_steps "
        "per_device_eval_batch_size learning_rate warmup_steps weight_decay lr_scheduler_type optim seed"
    ),
    "adapters (LoRA)": "use_peft lora_r lora_alpha lora_dropout lora_target_modules load_in_4bit merge_adapter",
    "checkpoints and results": (
        "output_dir overwrite_output_dir resume_from_checkpoint save_strategy save_steps save_total_limit "
        "load_best_model_at_end metric_for_best_model"
    ),
    "evaluation and progress": "eval_strategy eval_steps eval_on_start logging_steps report_to",
    "memory and speed": "gradient_checkpointing fsdp ddp_comm_hook torch_compile",
    "ranks": "backend ddp_timeout check_replicas dataloader_num_workers quiet",
}
_HEADER = """\
usage: train --model_name_or_path MODEL --train_file FILE --validation_file FILE --output_dir FOLDER [flags]

Fine-tune models on CPU ranks, for the tasks
{tasks}.
The flags are those of Hugging Face: every field of TrainingArguments is a flag. Without --do_train and --do_eval,
`train` trains if it has training data, and evaluates if it has validation data.
"""
_FOOTER = """\
train config.yaml [flags]       read flags from a file (key: value); flags on the command line take precedence
train --print-config [flags]    print a config file
train --help all                list every flag"""


# Hugging Face's texts describe its own scripts.
_TEXTS = {
    "do_train": "Train. Default: if there is training data.",
    "do_eval": "Evaluate. Default: if there is validation data.",
    "output_dir": "Folder for checkpoints, weights and result.json.",
    "gradient_checkpointing": "Keep only the input of each layer, and recompute the rest in the backward pass.",
    "torch_compile": "Compile the model. Needs a C++ compiler, which the image lacks.",
    "resume_from_checkpoint": "Checkpoint to resume from, or true for the last complete one in --output_dir.",
}


def render(everything: bool, tasks: Tasks) -> str:
    """The help text. `everything`: with every flag of TrainingArguments."""
    parser = make_parser(tasks)
    if everything:
        return parser.format_help().rstrip()
    actions = {action.dest: action for action in reversed(parser._actions)}
    lines = [_HEADER.format(tasks=", ".join(tasks))]
    for title, names in _groups(tasks).items():
        lines.append(f"{title}:")
        lines += [_line(actions[name]) for name in names if name in actions]
        lines.append("")
    return "\n".join([*lines, _FOOTER])


def config(parsed: Parsed, tasks: Tasks) -> str:
    """A config file with the given values, and with the defaults of the other documented keys as comments.

    Access tokens are left out.
    """
    values = {**vars(parsed.task), **parsed.training}
    lines = []
    documented: set[str] = set()
    for title, names in _groups(tasks).items():
        lines.append(f"# {title}")
        for name in [name for name in names if name in values]:
            documented.add(name)
            lines.append(("" if name in parsed.given else "# ") + config_files.dump(name, values[name]))
        lines.append("")
    others = sorted(parsed.given & set(values) - documented)
    if others:
        lines += ["# others", *(_entry(name, values[name]) for name in others)]
    return "\n".join(lines).rstrip("\n")


def _groups(tasks: Tasks) -> dict[str, list[str]]:
    """The documented flags by title: those of all tasks, then those of each task."""
    general = {title: names.split() for title, names in _GROUPS.items()}
    return {**general, **{task.name: task.own_flags for task in tasks.values() if task.own_flags}}


def _entry(name: str, value: Any) -> str:
    return f"# {name}: not printed" if name.endswith("_token") else config_files.dump(name, value)


def _line(action: argparse.Action) -> str:
    """`--flag  Description. (default)`, in at most two lines."""
    words = " ".join(_TEXTS.get(action.dest, action.help or "").replace("%%", "%").split())
    default = "" if action.default in (None, False, "") else f" ({action.default})"
    text = textwrap.shorten(words, 150 - len(default), placeholder=" ...") + default
    return textwrap.fill(text, 115, initial_indent=f"  --{action.dest:<30} ", subsequent_indent=" " * 35)
