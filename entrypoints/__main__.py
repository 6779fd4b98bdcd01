"""The image's entrypoint: dispatch to a command of this package, or exec anything else as it is."""

from __future__ import annotations

import os
import sys

from entrypoints import contract
from entrypoints.cli.errors import UsageError
from entrypoints.rank import exit as failure

HELP = """\
usage: entrypoint COMMAND ...

  train ...                             fine-tune a Hugging Face model in bf16, as one rank
  run SCRIPT.py ... | run -m MODULE ... run any torch script, unmodified, as one rank
  bench collectives ...                 measure the process group beside what limits it, as one rank
  launch [options] -- COMMAND ...       start several ranks of COMMAND on this node
  mpi-launch [options] -- COMMAND ...   start ranks on several nodes with Intel MPI's mpirun, over ssh
  sshd [options]                        let mpi-launch of another container start ranks in this one
  plan [--json]                         what a rank gets: cores, threads, variables, preloads, and why
  doctor [--json]                       check this container for a job, and print how to fix it

train, run and bench are one rank's work under mpirun, torchrun, srun and launch, or alone. Anything else is
run as it is. Each command has its own --help.
"""
RANK_COMMANDS = ("train", "run", "bench")


def main(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(HELP, end="")
        return 0
    command, *rest = argv
    if command == "--version":
        print(f"cpu-train-stack, pin {os.environ.get(contract.PIN, 'unknown: not in an image')}")
        return 0
    try:
        # Imported where used: what is dispatched elsewhere should not wait for it.
        if command == "run":
            from entrypoints.rank import run_options

            listed = run_options.explained(rest)
            if listed is not None:
                print(listed)
                return 0
        if command in RANK_COMMANDS:
            from entrypoints.rank import start

            start.start(argv)
        if command == "launch":
            from entrypoints.launch import agent

            return agent.main(rest)
        if command == "mpi-launch":
            from entrypoints.launch.mpi import command as mpi_launch

            return mpi_launch.main(rest)
        if command == "sshd":
            from entrypoints.launch.mpi import sshd

            return sshd.main(rest)
        if command == "plan":
            from entrypoints.plan import command as plan

            return plan.main(rest)
        if command == "doctor":
            from entrypoints.doctor import main as doctor

            return doctor.main(rest)
    except UsageError as error:
        return failure.usage(error)
    return _exec(command, argv)


def _exec(command: str, argv: list[str]) -> int:
    """Become `command`. Returns 127 or 126, as a shell does, where that fails."""
    sys.stdout.flush()
    try:
        os.execvp(command, argv)  # noqa: S606 - no shell is the point
    except FileNotFoundError:
        print(
            f"error: {command!r} is not a command of this image (see --help) nor a program on PATH",
            file=sys.stderr,
        )
        return 127
    except OSError as error:
        print(f"error: {command!r} cannot be run: {error.strerror}", file=sys.stderr)
        return 126


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
