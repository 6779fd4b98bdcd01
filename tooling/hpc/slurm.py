"""`./inv manifest slurm`: a batch script that runs an exported image on the nodes of a Slurm job. Pure."""

import hashlib
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import PurePosixPath
from typing import Annotated

from cpu_train_stack import contract
from cpu_train_stack.cli.account import TMP
from cpu_train_stack.cli.errors import UsageError, mistakes
from cpu_train_stack.cli.numbers import MOST_CPUS, MOST_NODES, MOST_RANKS, check_at_least
from tooling.cluster import launchers

# Before the time limit: for the last checkpoint, and for Slurm to requeue the job.
WARNING_SECONDS = 180
CHECKPOINT_SECONDS = 150
# A shorter job would be requeued before it has trained.
SHORTEST_SECONDS = 600
ENTRYPOINT = "/usr/local/bin/entrypoint"
SIF = ".sif"
SQUASHFS = ".sqsh"
# enroot passes on no variables of the host unless they are named. These are the ones that place a rank.
STEP_VARIABLES = (
    *("SLURM_JOB_ID", "SLURM_NTASKS", "SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE"),
    *("SLURM_STEP_NODELIST", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "MASTER_PORT"),
)
# What a login shell of the host may set, and what would change Python, the linker and libfabric in the image.
# Intel MPI's modules set the last two.
_HOSTS_OWN = (
    *("PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE", "LD_PRELOAD", "LD_LIBRARY_PATH"),
    *("FI_PROVIDER", "FI_PROVIDER_PATH"),
)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.,-]*")
_TIME = re.compile(r"[0-9]+(:[0-9]{2}){0,2}|[0-9]+-[0-9]{1,2}(:[0-9]{2}){0,2}")
_MEMORY = re.compile(r"[1-9][0-9]*[KMGT]")


@dataclass(frozen=True)
class SlurmJob:
    """The options, as typed. Raises UsageError, one line with all invalid options."""

    command: tuple[str, ...] = ()
    name: Annotated[str, "the job's name"] = "train"
    image: Annotated[
        str, "required: what ./inv export wrote, on a file system of all nodes: a folder, or a .sif or .sqsh file"
    ] = ""
    nodes: Annotated[int, "nodes of the job"] = 2
    ranks_per_node: Annotated[int, "training processes on each node, for example one for each socket"] = 1
    cpus: Annotated[int, "CPUs of each node; default: all, with --exclusive"] = 0
    memory: Annotated[str, "memory of each node, for example 128G; default: all"] = ""
    time: Annotated[
        str, "time limit, as sbatch takes it; a job that reaches it is requeued, and resumes; default: none"
    ] = ""
    max_restarts: Annotated[
        int, "times that the job is requeued at its time limit or after a failure of a node, and resumes"
    ] = 20
    partition: Annotated[str, "the partition; default: Slurm's"] = ""
    account: Annotated[str, "the account that is charged; default: Slurm's"] = ""
    data: Annotated[
        str, "a folder of the nodes, mounted at /data, read-only except with charliecloud; default: none"
    ] = ""
    output: Annotated[str, "required: a folder that all nodes share, mounted writable at /output"] = ""
    env: Annotated[tuple[str, ...], "NAME=VALUE for every rank; may be repeated"] = ()

    def __post_init__(self) -> None:
        if found := self._mistakes():
            raise UsageError("; ".join(found))

    def _mistakes(self) -> list[str]:
        found = mistakes(
            partial(check_at_least, *limits)
            for limits in (
                ("--nodes", self.nodes, 1, MOST_NODES),
                ("--ranks-per-node", self.ranks_per_node, 1, MOST_RANKS),
                ("--cpus", self.cpus, 0, MOST_CPUS),
                ("--max-restarts", self.max_restarts, 0),
            )
        )
        if self.cpus > 0 and self.ranks_per_node > 0 and self.cpus % self.ranks_per_node:
            found.append(
                f"--cpus {self.cpus} for {self.ranks_per_node} ranks, expected a multiple of {self.ranks_per_node}"
            )
        # enroot separates the parts of a mount by spaces.
        allows_spaces = not self.image.endswith(SQUASHFS)
        allowed = r"[^:,\n]+" if allows_spaces else r"[^:,\s]+"
        for flag, path, is_required in (
            ("--image", self.image, True),
            ("--output", self.output, True),
            ("--data", self.data, False),
        ):
            if (path or is_required) and not (PurePosixPath(path).is_absolute() and re.fullmatch(allowed, path)):
                found.append(
                    f"{flag} is {repr(path) if path else 'missing'}, expected an absolute path without ':'"
                    + ("" if allows_spaces else " or spaces")
                )
        for flag, text, pattern, expected in (
            ("--name", self.name, _NAME, "letters, digits, '-', '_' and '.'"),
            ("--partition", self.partition, _WORD, "a name, as sinfo shows it"),
            ("--account", self.account, _WORD, "a name, as sacctmgr shows it"),
            ("--time", self.time, _TIME, "minutes, or hours:minutes:seconds, or days-hours"),
            ("--memory", self.memory, _MEMORY, "a size such as 128G"),
        ):
            if (text or flag == "--name") and not pattern.fullmatch(text):
                found.append(f"{flag} is {text!r}, expected {expected}")
        if _TIME.fullmatch(self.time) and self.max_restarts and 0 < _seconds(self.time) < SHORTEST_SECONDS:
            found.append(
                f"--time is {self.time}, expected {SHORTEST_SECONDS // 60} minutes or more, or --max-restarts 0: "
                f"the job is requeued {WARNING_SECONDS // 60} minutes before the limit"
            )
        found += mistakes(partial(launchers.assignment, "--env", text, reserved=()) for text in self.env)
        found += mistakes(
            [
                partial(launchers.check_distinct, "--env", self.env),
                partial(launchers.check_rank_command, self.command, "-- train --output_dir /output/first …"),
            ]
        )
        if ":" in self.command:
            found.append(
                "the command has the argument ':', which srun takes as the start of another program: remove it"
            )
        return found

    @property
    def job(self) -> str:
        """The job's name for `train`: the same after a requeue, different for another command."""
        return f"slurm/{self.name}/{hashlib.sha256(chr(0).join(self.command).encode()).hexdigest()[:12]}"

    def script(self) -> str:
        return _SCRIPT.format(
            directives="\n".join(f"#SBATCH {line}" for line in self._directives()),
            max_restarts=self.max_restarts,
            trap=self._trap() if self.time else "",
            srun=_folded(self._srun()),
            usage=contract.USAGE_EXIT_CODE,
        )

    @property
    def _stop(self) -> str:
        """The file in the output folder that asks `train` for a checkpoint and its end."""
        return f".stop-{self.job.replace('/', '-')}"

    def _trap(self) -> str:
        return _TRAP.format(
            file=shlex.quote(f"{self.output}/{self._stop}"),
            max_restarts=self.max_restarts,
            seconds=CHECKPOINT_SECONDS,
        )

    def _directives(self) -> list[str]:
        optional = {"partition": self.partition, "account": self.account, "time": self.time}
        return [
            f"--job-name={self.name}",
            f"--nodes={self.nodes}",
            f"--ntasks-per-node={self.ranks_per_node}",
            f"--cpus-per-task={self.cpus // self.ranks_per_node}" if self.cpus else "--exclusive",
            f"--mem={self.memory or 0}",
            *(f"--{name}={value}" for name, value in optional.items() if value),
            *([f"--signal=B:USR1@{WARNING_SECONDS}"] if self.time else []),
            "--requeue" if self.max_restarts else "--no-requeue",
            "--open-mode=append",
        ]

    def _srun(self) -> list[list[str]]:
        """The command in parts, one for each line."""
        variables = {
            contract.IMAGE: self.image,
            contract.JOB: self.job,
            **({contract.STOP: f"{contract.OUTPUT}/{self._stop}"} if self.time else {}),
            "HOME": TMP,
            "HF_HOME": f"{contract.OUTPUT}/huggingface",
            **dict(text.split("=", 1) for text in self.env),
        }
        return [
            ["srun", "--kill-on-bad-exit=1", "--cpu-bind=none"],
            ["env", *(word for name in _HOSTS_OWN for word in ("-u", name))],
            *self._container([f"{name}={value}" for name, value in variables.items()]),
        ]

    def _container(self, variables: Sequence[str]) -> list[list[str]]:
        """What starts the command in a container with these variables."""
        program = self._program(variables)
        if self.image.endswith(SQUASHFS):  # enroot runs the image's entrypoint
            return [program, list(self.command)]
        return [program, ["env", *variables], [ENTRYPOINT, *self.command]]

    def _program(self, variables: Sequence[str]) -> list[str]:
        data, output = f"{self.data}:{contract.DATA}", f"{self.output}:{contract.OUTPUT}"
        if self.image.endswith(SQUASHFS):
            mounts = [f"--mount={data}:none:bind,ro,x-create=dir"] if self.data else []
            mounts.append(f"--mount={output}:none:bind,x-create=dir")
            given = {variable.partition("=")[0] for variable in variables}
            inherited = [name for name in STEP_VARIABLES if name not in given]
            named = [f"--env={variable}" for variable in (*inherited, *variables)]
            return ["enroot", "start", *mounts, *named, self.image]
        if self.image.endswith(SIF):
            binds = [f"--bind={data}:ro"] if self.data else []
            return ["apptainer", "exec", *binds, f"--bind={output}", self.image]
        binds = [f"--bind={data}"] if self.data else []
        return ["ch-run", "--set-env", *binds, f"--bind={output}", self.image, "--"]


# Slurm sends SIGUSR1 to the script before the time limit. Not SIGTERM: scancel sends it too, and a cancelled job
# must not be requeued.
_TRAP = """\
stop={file}
rm -f "$stop"
srun=
# train saves a checkpoint, deletes the file, and ends. Slurm ends other commands.
at_limit() {{
    interrupted=yes
    touch "$stop" && asked=yes
    for _ in {{1..{seconds}}}; do kill -0 "$srun" 2>/dev/null || return; sleep 1; done
    requeue "the time limit is near"
}}
trap at_limit USR1
"""
# srun may end before slurmctld knows that a node is dead, for example if the node died before the job started. The
# job would end as FAILED, although it has --requeue. Therefore the script asks the nodes.
_SCRIPT = """\
#!/bin/bash
# Written by ./inv manifest slurm. Submit it with sbatch.
{directives}
set -u
export USER="${{USER:-$(id -un)}}"
job="job $SLURM_JOB_ID"; restarts="${{SLURM_RESTART_COUNT:-0}}"; asked=
if [ "$restarts" -gt {max_restarts} ]; then
    echo "$job: restarted $restarts times, expected {max_restarts} at most: see --max-restarts" >&2
    exit 1
fi
# A requeued job resumes from its last checkpoint. $1: the reason.
requeue() {{
    if [ "$restarts" -ge {max_restarts} ]; then
        echo "$job: $1: not requeued after $restarts restarts: see --max-restarts" >&2
        return
    fi
    echo "$job: $1: requeueing" >&2 # before Slurm ends this script
    scontrol requeue "$SLURM_JOB_ID"
}}
# False after scancel, and if Slurm has requeued the job.
is_running() {{ [ "$(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%T)" = RUNNING ]; }}
# Whether every node of the job starts a process.
nodes_answer() {{
    timeout --kill-after=5 120 srun --quiet --overlap --nodes="$SLURM_JOB_NUM_NODES" \\
        --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --cpus-per-task=1 --cpu-bind=none true
}}
{trap}# srun no longer inherits this number from sbatch.
export SRUN_CPUS_PER_TASK="${{SLURM_CPUS_PER_TASK:-}}"
[ "$SRUN_CPUS_PER_TASK" ] || unset SRUN_CPUS_PER_TASK
# Where the ranks meet. Other jobs may use the same node.
export MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
# Each rank chooses its own cores: entrypoint plan shows them.
{srun} &
srun=$!
interrupted=yes # a signal ends wait early: wait again
while [ "$interrupted" ]; do interrupted=; wait "$srun"; code=$?; done
# First the codes of a job that has ended by itself: train deletes the stop file at the end of any training.
if [ "$code" = 0 ] || [ "$code" = {usage} ]; then
    exit "$code"
elif [ "$asked" ] && [ ! -e "$stop" ]; then
    requeue "stopped before the time limit"
elif is_running && ! nodes_answer && is_running; then
    requeue "a node does not answer"
fi
exit "$code"
"""


def _seconds(time: str) -> int:
    """A time limit in seconds. `time`: as sbatch takes it, of the form _TIME."""
    days, _, clock = time.rpartition("-")
    parts = [int(part) for part in clock.split(":")]
    if not days and len(parts) < 3:
        parts.insert(0, 0)  # minutes, or minutes:seconds
    hours, minutes, seconds = (*parts, 0, 0)[:3]
    return int(days or 0) * 86400 + hours * 3600 + minutes * 60 + seconds


def _folded(parts: Sequence[Sequence[str]]) -> str:
    return " \\\n    ".join(shlex.join(part) for part in parts)
