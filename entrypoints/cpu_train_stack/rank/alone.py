"""Scripts that mpirun, srun or another launcher starts as several ranks: `mpirun -n 2 python train.py`.

torch does not know these launchers: each rank would train alone, on all of the data. As under torchrun, such a
process becomes `entrypoint run SCRIPT`. These keep their command: `python -c` and `python -m`, programs whose name
does not end in .py, a rank's own children, scripts that do not import torch, and scripts that find out their rank
themselves, by mpi4py or by the launcher's variable. Torch-free.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from cpu_train_stack import contract
from cpu_train_stack.cli.numbers import whole_number
from cpu_train_stack.placement.launchers import LAUNCHERS, PLAIN, TORCHRUN, Launcher

_OFF = "plain"
# Modules that import torch, and modules with which a program talks to its other ranks.
_TORCH = frozenset(
    (
        *("accelerate", "diffusers", "ignite", "intel_extension_for_pytorch", "lightning", "peft"),
        *("pytorch_lightning", "sentence_transformers", "setfit", "timm", "torch", "torchvision"),
        *("transformers", "trl"),
    )
)
_OWN = frozenset(("horovod", "mpi4py", "ray"))
# A script imports few files of its own folder. Others are not read.
_MOST_FILES = 30
_PYTHON = re.compile(r"(python|pt_main_thread|pypy)[\d.]*")


def launcher_of(environ: Mapping[str, str]) -> Launcher | None:
    """The launcher that started several ranks, if torch does not know it. None in a rank of this stack, too."""
    if environ.get("RANK") or environ.get(contract.TORCHRUN) == _OFF or TORCHRUN.started(environ):
        return None
    known = [one for one in LAUNCHERS if one not in (TORCHRUN, PLAIN) and one.started(environ)]
    ranks = [(one, whole_number(environ.get(one.world_size, ""))) for one in known]
    return next((one for one, number in ranks if number is not None and number > 1), None)


def adopted(words: Sequence[str], environ: Mapping[str, str], above: Sequence[str]) -> list[str]:
    """The arguments of `run`, or none if the process keeps its command.

    `words`: the command line of this Python process. `above`: the names of the processes of this rank above it.
    """
    launcher = launcher_of(environ)
    arguments = list(words[1:])
    while arguments and arguments[0] in ("-u", "-B", "-s", "-E"):
        del arguments[0]
    if launcher is None or not arguments or not arguments[0].endswith(".py"):
        return []
    if any(_PYTHON.fullmatch(name) for name in above):  # a program that a rank has started
        return []
    return arguments if _trains_alone(Path(arguments[0]), launcher) else []


def names_above(proc: Path = Path("/proc")) -> list[str]:
    """The names of the processes above this one that have this rank's variables, such as a shell's."""
    launcher = launcher_of(os.environ)
    found: list[str] = []
    if launcher is None:
        return found
    mark, pid = f"{launcher.rank}={os.environ.get(launcher.rank, '')}", os.getppid()
    try:
        while pid > 1 and mark in os.fsdecode((proc / str(pid) / "environ").read_bytes()).split("\0"):
            name, _, rest = (proc / str(pid) / "stat").read_text().partition("(")[2].rpartition(")")
            found.append(name)
            pid = int(rest.split()[1])
    except OSError:  # slurmstepd is another user's
        pass
    return found


def _trains_alone(script: Path, launcher: Launcher) -> bool:
    """Whether the script imports torch, also through files beside it, and does not know the launcher itself."""
    modules: set[str] = set()
    for text in _sources(script, modules):
        if launcher.rank in text:
            return False
    return bool(modules & _TORCH) and not modules & _OWN


def _sources(script: Path, modules: set[str]) -> Iterator[str]:
    """The text of the script and of the files that it imports from its folder. Fills `modules`."""
    waiting, seen = [script], {script}
    while waiting and len(seen) <= _MOST_FILES:
        file = waiting.pop()
        try:
            text = file.read_text(encoding="utf-8", errors="replace")
            found = _imported(text)
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):  # Python reports it
            continue
        yield text
        for name in found:
            modules.add(name.partition(".")[0])
            path = script.parent.joinpath(*name.split("."))
            for candidate in (path.with_suffix(".py"), path / "__init__.py"):
                if candidate not in seen and candidate.is_file():
                    seen.add(candidate)
                    waiting.append(candidate)


def _imported(text: str) -> list[str]:
    names = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [node.module]
    return names
