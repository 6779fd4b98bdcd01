"""The image's entrypoint: dispatch to a command of this package, or exec any other command unchanged."""

from __future__ import annotations

import errno
import importlib
import os
import signal
import sys

from cpu_train_stack import contract
from cpu_train_stack.cli import account
from cpu_train_stack.cli.errors import UsageError, error_of_name
from cpu_train_stack.cli.say import lost_output, say
from cpu_train_stack.rank.exit import report_usage_error

HELP = """\
usage: entrypoint COMMAND ...

One rank of a job (alone, or under mpirun, torchrun, srun or launch):
  train ...                             fine-tune a Hugging Face model
  run SCRIPT.py ... | run -m MODULE ... run any torch script, unmodified
  bench collectives|scaling ...         measure collectives or scaling, and compare with the hardware's limits

Several ranks:
  launch [options] -- COMMAND ...       start several ranks of COMMAND on this node
  mpi-launch [options] -- COMMAND ...   start ranks on several nodes with Intel MPI's mpirun, over ssh
  sshd [options]                        accept ranks from mpi-launch in another container

A single process:
  generate MODEL [PROMPT ...]           print the answers of a trained language model

Inspection:
  plan [--json] [--html FILE]           show a rank's cores, threads, variables and preloads, with reasons
  watch [FOLDER]                        follow a job: progress, speed, and what each rank waits for
  report FOLDER ...                     write a job's report.html, or compare several jobs on one page
  doctor [--json] [--html FILE]         check this container for training, and print how to fix each problem

Any other command is executed unchanged. Each command above has its own --help.
"""
RANK_COMMANDS = ("train", "run", "bench", "generate")
# Seconds between two states of a progress bar. A log would get each state.
_BAR_ON_TERMINAL, _BAR_IN_LOG = "0.1", "10"
# The module whose `main` runs the command.
OTHER_COMMANDS = {
    "launch": "cpu_train_stack.launch.agent",
    "mpi-launch": "cpu_train_stack.launch.mpi.command",
    "sshd": "cpu_train_stack.launch.mpi.ssh",
    "plan": "cpu_train_stack.plan.command",
    "watch": "cpu_train_stack.watch.main",
    "report": "cpu_train_stack.report.main",
    "doctor": "cpu_train_stack.doctor.main",
}


def main(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(HELP, end="")
        return 0
    command, *rest = argv
    if command == "--version":
        print(f"cpu-train-stack, pin {os.environ.get(contract.PIN, 'unknown: not in an image')}")
        return 0
    account.complete()
    if command in (*RANK_COMMANDS, "launch", "mpi-launch"):
        # `launch` decides for its ranks, which write to pipes.
        os.environ.setdefault("TQDM_MININTERVAL", _BAR_ON_TERMINAL if os.isatty(2) else _BAR_IN_LOG)
    try:
        # Each command imports its own modules only: imports cost time.
        if command == "run" and "--explain" in rest:
            import cpu_train_stack.rank.script

            explanation = cpu_train_stack.rank.script.explanation(rest)
            if explanation is not None:
                print(explanation)
                return 0
        if command in RANK_COMMANDS:
            import cpu_train_stack.rank.start

            cpu_train_stack.rank.start.start(argv)
        if command in OTHER_COMMANDS:
            return int(importlib.import_module(OTHER_COMMANDS[command]).main(rest))
    except UsageError as error:
        return report_usage_error(error)
    except OSError as error:
        wrong = error_of_name(error, errno.EACCES)
        if wrong is None:
            raise
        return report_usage_error(wrong)
    return _exec(command, argv)


def _exec(command: str, argv: list[str]) -> int:
    """Replace this process by `command`. Returns 127 or 126, as a shell does, if that fails."""
    sys.stdout.flush()
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and the command would inherit that
    try:
        os.execvp(command, argv)
    except (FileNotFoundError, ValueError):  # ValueError: the command is empty
        say(f"error: {command!r} is neither a command of this image (see --help) nor a program on PATH")
        return 127
    except OSError as error:
        say(f"error: cannot run {command!r}: {error.strerror}")
        return 126


if __name__ == "__main__":
    try:
        try:
            code = main(sys.argv[1:])
        finally:  # flush here, because an error cannot be caught when the interpreter exits
            sys.stdout.flush()
    except OSError as error:
        code = lost_output(error)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        code = contract.INTERRUPTED_EXIT_CODE
    sys.exit(code)
