"""Random flags and configuration files of `train`: each gives arguments, or a UsageError of one line.

Usage: fuzz_train.py NUMBER, the number of cases. Prints the cases that do not.
"""

from __future__ import annotations

import contextlib
import io
import random
import sys
import tempfile
import traceback
from pathlib import Path

from cpu_train_stack.cli.errors import UsageError, error_of_name
from cpu_train_stack.train.flags import arguments, old_flags, training_arguments
from cpu_train_stack.train.main import PRINT_CONFIG
from cpu_train_stack.train.model import pretrained
from cpu_train_stack.train.output import folder
from cpu_train_stack.train.tasks.registry import TASKS
from tests import fuzzing

CONFIG = """\
# A run
model_name_or_path: /m
train_file: /t.csv
output_dir: /tmp/o
learning_rate: 1e-4
num_train_epochs: 2
bf16: true
lr_scheduler_kwargs: {num_cycles: 2}
label_names: [a, b]
report_to: none
"""
BASE = ("--model_name_or_path", "/m", "--train_file", "/t.csv", "--output_dir", "/tmp/o")
# They print, and end.
LEFT_OUT = {"help", PRINT_CONFIG[2:]}


def words(chance: random.Random, flags: list[str], file: Path) -> list[str]:
    if chance.random() < 0.4:
        file.write_bytes(fuzzing.mutated(CONFIG.encode(), chance))
        return [str(file), *fuzzing.words(chance, [()], flags)]
    return [*(BASE if chance.random() < 0.8 else ()), *fuzzing.words(chance, [()], flags)]


def run(argv: list[str]) -> None:
    parsed = arguments.parse(argv, TASKS)
    training_arguments.create(parsed)
    pretrained.check_folder(str(parsed.task.model_name_or_path))
    folder.choose_start(Path(str(parsed.training["output_dir"])), parsed.training["resume_from_checkpoint"], False)


def main(count: int) -> int:
    known = {action.dest for action in arguments.make_parser(TASKS)._actions} | old_flags.HANDLED
    flags = [*sorted(known - LEFT_OUT), "no-such", "no_bf16"]
    failed = 0
    with tempfile.TemporaryDirectory() as scratch:
        for seed in range(count):
            argv = words(random.Random(seed), flags, Path(scratch) / "config.yaml")
            problem = ""
            try:
                with contextlib.redirect_stderr(io.StringIO()), fuzzing.one_case(seed):
                    try:
                        run(argv)
                    except UsageError:
                        pass  # `line_of` prints one line
                    except OSError as error:
                        if error_of_name(error) is None:
                            raise
            except AssertionError:
                problem = traceback.format_exc(limit=-4)
            if problem:
                failed += 1
                print(f"seed {seed}: {[word[:80] for word in argv]}\n{problem[:3000]}")
    print(f"{count} cases, {failed} failed")
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
