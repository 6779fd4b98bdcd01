"""Slurm's short forms of lists, and its steps."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.numbers import MOST_NODES, whole_number

# The steps of sbatch and salloc have numbers from here up: shells, not tasks that srun started.
_SPECIAL_STEPS = 0xFFFFFFF0


def tasks_per_node(text: str) -> list[int]:
    """Slurm's short form of the tasks on each node: "2(x2),1" is [2, 2, 1]."""
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]+)(?:\(x([0-9]+)\))?", part)
        tasks, nodes = map(whole_number, (match[1], match[2] or "1")) if match else (None, None)
        if tasks is None or nodes is None or len(counts) + nodes > MOST_NODES:
            raise UsageError(
                f"SLURM_STEP_TASKS_PER_NODE is {text[:60]!r}, expected the form 2(x2),1 for at most "
                f"{MOST_NODES:,} nodes: start it with srun"
            )
        counts += [tasks] * nodes
    return counts


def expand_nodelist(text: str) -> list[str]:
    """Slurm's short form of host names: "node[01-03,07],big" is node01 node02 node03 node07 big."""
    name = r"(?:[^,\[\]\s]|\[[0-9]+(?:-[0-9]+)?(?:,[0-9]+(?:-[0-9]+)?)*\])+"
    if not re.fullmatch(f"{name}(?:,{name})*", text):
        raise UsageError(
            f"SLURM_STEP_NODELIST is {text!r}, expected the form node[01-03,07]: set MASTER_ADDR instead"
        )
    hosts: list[str] = []
    for entry in re.findall(r"(?:[^,\[\]]|\[[^\[\]]*\])+", text):
        parts = [_expand_range(part) for part in re.split(r"(\[[^\]]*\])", entry) if part]
        _check_number(len(hosts) + math.prod(map(len, parts)))
        hosts += ["".join(choice) for choice in itertools.product(*parts)]
    return hosts


def _expand_range(part: str) -> list[str]:
    if not part.startswith("["):
        return [part]
    names: list[str] = []
    for piece in part[1:-1].split(","):
        low, _, high = piece.partition("-")
        first, last = whole_number(low), whole_number(high or low)
        if first is None or last is None:
            raise UsageError(f"SLURM_STEP_NODELIST has the range {piece[:60]!r}, expected two node numbers")
        _check_number(len(names) + last - first + 1)
        names += [str(number).zfill(len(low)) for number in range(first, last + 1)]
    return names


def _check_number(nodes: int) -> None:
    if nodes > MOST_NODES:
        raise UsageError(f"SLURM_STEP_NODELIST names {nodes:,} nodes, expected at most {MOST_NODES:,}")


def in_step(environ: Mapping[str, str]) -> bool:
    """Whether srun started this process: an sbatch script has SLURM_PROCID and SLURM_NTASKS, but no step."""
    step = whole_number(environ.get("SLURM_STEP_ID", ""))
    return step is None or step < _SPECIAL_STEPS
