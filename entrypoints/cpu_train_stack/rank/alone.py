"""Scripts that mpirun, srun or another launcher starts as several ranks: `mpirun -n 2 python train.py`.

torch does not know these launchers: each rank would train alone, on all of the data. As under torchrun, such a
process becomes `entrypoint run SCRIPT`, or `run -m MODULE`. With `python -c`, with other options of Python, such
as -X, and if only an installed package imports torch, a rank keeps its command and prints that it trains alone.
These keep their command without a line: programs whose name does not end in .py, a rank's own children, programs
that do not import torch, and scripts that find out their rank themselves, by mpi4py or by the launcher's variable.
Of the latter, those that could not start become `run`, too: transformers refuses a flag of theirs.

Also a note for scripts of older libraries that plain Python runs. Torch-free.
"""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from cpu_train_stack import contract
from cpu_train_stack.cli.import_hooks import after_import
from cpu_train_stack.cli.numbers import whole_number
from cpu_train_stack.cli.say import say
from cpu_train_stack.placement.launchers import LAUNCHERS, PLAIN, TORCHRUN, Launcher

OFF = "plain"
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
# Options of Python that do not change what a script does, and options that have a value.
PASSED_OVER = frozenset(("-u", "-B", "-s", "-E", "-b", "-q"))
_WITH_VALUE = frozenset(("-W", "-X"))
# Libraries whose newer releases refuse older scripts, what refuses flags, and how.
_HUGGING_FACE = frozenset(("accelerate", "datasets", "evaluate", "huggingface_hub", "transformers"))
_REFUSING = re.compile(r"HfArgumentParser|TrainingArguments")
_REFUSED = re.compile(r"are not used by the HfArgumentParser|TrainingArguments.*unexpected keyword argument")
_PYTHON = re.compile(r"(python|pt_main_thread|pypy)[\d.]*")


def launcher_of(environ: Mapping[str, str]) -> Launcher | None:
    """The launcher that started several ranks, if torch does not know it. None in a rank of this stack, too."""
    if environ.get("RANK") or environ.get(contract.TORCHRUN) == OFF or TORCHRUN.started(environ):
        return None
    known = [one for one in LAUNCHERS if one not in (TORCHRUN, PLAIN) and one.started(environ)]
    ranks = [(one, whole_number(environ.get(one.world_size, ""))) for one in known]
    return next((one for one, number in ranks if number is not None and number > 1), None)


def adopted(words: Sequence[str], environ: Mapping[str, str], above: Sequence[str]) -> list[str]:
    """The arguments of `run`, or none if the process keeps its command.

    `words`: the command line of this Python process. `above`: the names of the processes of this rank above it.
    """
    launcher = launcher_of(environ)
    options, arguments = split(words[1:])
    if launcher is None or not set(options) <= PASSED_OVER or not _imports_torch(arguments, launcher, above):
        return []
    return [] if arguments[0] == "-c" else arguments


def warning(words: Sequence[str], environ: Mapping[str, str], above: Sequence[str]) -> str | None:
    """The line of a rank that keeps its command and trains alone."""
    launcher = launcher_of(environ)
    options, arguments = split(words[1:])
    if launcher is None or not _imports_torch(arguments, launcher, above):
        return None
    return _line(launcher, environ, [*options, *arguments[:1]])


def _line(launcher: Launcher, environ: Mapping[str, str], program: Sequence[str]) -> str:
    return (
        f"warning: {launcher.name} started this process as rank {environ[launcher.rank]} of "
        f"{environ[launcher.world_size]}, but python {' '.join(program)} trains alone, on all "
        f"of the data: use entrypoint run SCRIPT.py (or run -m MODULE), or set {contract.TORCHRUN}={OFF}"
    )


def watch(words: Sequence[str], environ: Mapping[str, str], above: Sequence[str]) -> None:
    """Print the line when a rank imports torch through a package whose files were not read."""
    launcher = launcher_of(environ)
    options, arguments = split(words[1:])
    if launcher is None or _modules(arguments, launcher, above) is None:
        return

    def say_so(_torch: object) -> None:
        # A script that sets RANK, or has imported mpi4py, knows its rank.
        if launcher_of(environ) is launcher and not _OWN & set(sys.modules):
            say(_line(launcher, environ, [*options, *arguments[: 2 if arguments[0] == "-m" else 1]]))

    after_import("torch", say_so)


def split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Python's own options, and the program (a file, -m MODULE or -c TEXT) with its arguments."""
    options, rest = [], list(words)
    while rest and rest[0].startswith("-") and rest[0] not in ("-", "-c", "-m"):
        options.append(rest.pop(0))
        if options[-1] in _WITH_VALUE and rest:
            options.append(rest.pop(0))
    return options, rest


def _imports_torch(arguments: Sequence[str], launcher: Launcher, above: Sequence[str]) -> bool:
    return bool((_modules(arguments, launcher, above) or set()) & _TORCH)


def _modules(arguments: Sequence[str], launcher: Launcher, above: Sequence[str]) -> set[str] | None:
    """What a program imports, as far as its text shows it. None if it does not train, or knows its rank itself."""
    if not arguments or any(_PYTHON.fullmatch(name) for name in above):  # a program that a rank has started
        return None
    modules: set[str] = set()
    if arguments[0] not in ("-m", "-c"):
        script = Path(arguments[0])
        texts = _sources(script, script.parent, modules) if script.suffix == ".py" else None
    elif len(arguments) < 2:
        return None
    elif arguments[0] == "-c":
        modules |= {name.partition(".")[0] for name in _names(arguments[1])}
        texts = iter(arguments[1:2])
    else:
        # Of an installed module, the files are not read: it may be a launcher itself.
        path = Path(*arguments[1].split("."))
        files = [file for file in (path.with_suffix(".py"), path / "__main__.py") if file.is_file()]
        is_launcher = path.parts[0] in {*_TORCH, *_OWN, __name__.partition(".")[0]}
        if is_launcher and not files:
            return None
        texts = (text for file in files for text in _sources(file, Path(), modules))
    if texts is None:
        return None
    text = "\n".join(texts)
    knows_its_rank = launcher.rank in text and not (_REFUSING.search(text) and _is_refused(arguments))
    return None if knows_its_rank or modules & _OWN else modules


def _is_refused(arguments: Sequence[str]) -> bool:
    """Whether the installed transformers refuses one of the flags, which `run` adapts."""
    from cpu_train_stack.cli import packages
    from cpu_train_stack.compat.flags import FLAGS
    from cpu_train_stack.compat.rewriting import values

    installed = packages.release(packages.versions(["transformers"]).get("transformers"))
    given = values(arguments)
    return any(
        flag.name in given and (not flag.only or given[flag.name] in flag.only)
        for flag in FLAGS
        if flag.gone is not None and installed >= packages.release(flag.gone)
    )


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


def _sources(script: Path, folder: Path, modules: set[str]) -> Iterator[str]:
    """The text of the script and of the files that it imports from the folder and PYTHONPATH. Fills `modules`."""
    waiting, seen = [script], {script}
    folders = [folder, *map(Path, filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))]
    while waiting and len(seen) <= _MOST_FILES:
        file = waiting.pop()
        try:
            text = file.read_text(encoding="utf-8-sig", errors="replace")
        except OSError:  # Python reports it
            continue
        yield text
        for name in _names(text):
            absolute = name.lstrip(".")
            level = len(name) - len(absolute)
            if level == 0:
                modules.add(name.partition(".")[0])
            # Of a relative import: the package of the file, or one above.
            for start in list(file.parents)[level - 1 : level] if level else folders:
                path = start.joinpath(*absolute.split("."))
                for candidate in (path.with_suffix(".py"), path / "__init__.py"):
                    if candidate not in seen and candidate.is_file():
                        seen.add(candidate)
                        waiting.append(candidate)


def _names(text: str) -> list[str]:
    try:
        return _imported(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # Python reports it
        return []


def _imported(text: str) -> list[str]:
    """Names of modules. A relative import keeps its dots."""
    names = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            # The names of a package may be its modules.
            package = "." * node.level + (node.module or "")
            join = "." if node.module else ""
            names += [package] * bool(node.module) + [f"{package}{join}{alias.name}" for alias in node.names]
    return names


def report(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    """sys.excepthook of a script that plain Python runs: the traceback, and what adapts the script."""
    sys.__excepthook__(kind, error, traceback)
    removed = isinstance(error, ImportError) and (error.name or "").partition(".")[0] in _HUGGING_FACE
    if removed or _REFUSED.search(str(error)):
        say(f"note: this script is for older libraries: `entrypoint run {sys.argv[0]} ...` adapts it")
