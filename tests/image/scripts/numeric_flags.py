"""Every numeric flag of `train` with numbers that mean nothing: each is a UsageError of one line, or accepted."""

import sys

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.train.flags import arguments, training_arguments
from cpu_train_stack.train.tasks.registry import TASKS

WRONG = (
    *("nan", "inf", "-inf", "1e999", "-1", "0", "-0.5", "--", "99999999999999999999", "9" * 5000, "", "x", "1e"),
    *("\uff10", "\u0663", "\uff14\uff12", "1\u0663", "\u0660.\u0665"),
)
# Values that mean something: the least number of a flag, and Trainer's own "not set".
ZERO = (
    *("doc_stride", "null_score_diff_threshold", "lora_dropout", "learning_rate", "warmup_steps", "weight_decay"),
    *(
        "adam_beta1",
        "adam_beta2",
        "adam_epsilon",
        "max_grad_norm",
        "label_smoothing_factor",
        "neftune_noise_alpha",
    ),
    *("eval_delay", "seed", "data_seed", "dataloader_num_workers", "warmup_ratio"),
)
MEANT = {("-1", "max_steps"), ("-1", "data_seed"), ("-1", "null_score_diff_threshold")}
MEANT |= {("-0.5", "null_score_diff_threshold"), *(("0", name) for name in ZERO)}
BASE = ["--model_name_or_path", "/m", "--train_file", "/t.csv", "--output_dir", "/tmp/o"]


def refusal(argv: list[str]) -> str:
    try:
        training_arguments.create(arguments.parse([*BASE, *argv], TASKS))
    except UsageError as error:
        return str(error)
    return ""


def main() -> int:
    faults, count = [], 0
    numeric = [action.dest for action in arguments.make_parser(TASKS)._actions if action.type in (int, float)]
    numeric.remove("local_rank")  # an old launcher's flag, which is left out with a note
    for name in numeric:
        for text in WRONG:
            line = refusal([f"--{name}={text}"])
            count += 1
            if bool(line) is ((text, name) in MEANT) or "\n" in line or (line and name not in line):
                faults.append(f"--{name}={text[:30]}: {line[:200] or 'accepted'}")
    print(*faults, sep="\n")
    print(f"{count} values of {len(numeric)} flags")
    return len(faults)


if __name__ == "__main__":
    sys.exit(min(main(), 1))
