"""Scripts of `accelerate launch --num_processes 2`, which accelerate starts as a single process on CPUs.

Such a process becomes `entrypoint launch --nproc-per-node 2 -- run SCRIPT`. The number may also be in accelerate's
configuration file. accelerate gives the processes of several machines no numbers: `run` refuses them. Where `run`
cannot take the program, one line says that it trains alone. Torch-free.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from cpu_train_stack import contract
from cpu_train_stack.cli.numbers import whole_number
from cpu_train_stack.compat.rewriting import values
from cpu_train_stack.rank import alone


def ranks(words: Sequence[str], environ: Mapping[str, str], parent: Sequence[str]) -> tuple[list[str], str]:
    """The command of `entrypoint`, and a line for the user. Both are empty for other processes.

    `words`: the command line of this process. `parent`: that of the process that started it, which ends with the
    program and its arguments if it is accelerate's.
    """
    options, program = alone.split(words[1:])
    arguments = program[1:] if program[:1] == ["-m"] else program
    own = list(parent[1 : len(parent) - len(arguments)])
    if environ.get("RANK") or environ.get(contract.TORCHRUN) == alone.OFF or not arguments:
        return [], ""
    if list(parent[len(own) + 1 :]) != arguments or not _is_accelerate(own):
        return [], ""
    given = values(own)
    config = _text(given.get("config_file"), environ)
    number, machines = (_number(name, given, config) for name in ("num_processes", "num_machines"))
    if number < 2:
        return [], ""
    is_run = program[0] == "-m" or arguments[0].endswith(".py")
    if not is_run or not set(options) <= alone.PASSED_OVER:
        return [], (
            f"warning: accelerate starts one process on CPUs, not {number}: it trains alone, on all of the data. "
            "Use entrypoint launch --nproc-per-node NUMBER -- run SCRIPT.py (or run -m MODULE)"
        )
    start = ["launch", "--nproc-per-node", str(number), "--", "run"] if machines == 1 else ["run"]
    shown = " ".join([*start, *program[: 2 if program[0] == "-m" else 1]])
    return [*start, *program], f"note: accelerate starts one process on CPUs: this becomes `{shown} ...`"


def _is_accelerate(own: Sequence[str]) -> bool:
    """`own`: the words between Python and the script: its options, accelerate and accelerate's options."""
    _, program = alone.split(own)
    if program[:1] == ["-m"]:
        return "".join(program[1:2]).partition(".")[0] == "accelerate"
    return Path("".join(program[:1])).name in ("accelerate", "accelerate-launch")


def _number(name: str, given: Mapping[str, str], config: str) -> int:
    found = re.search(rf'^\s*"?{name}"?:\s*([0-9]+)', config, re.MULTILINE)
    return whole_number(given.get(name) or (found[1] if found else "1")) or 1


def _text(file: str | None, environ: Mapping[str, str]) -> str:
    """accelerate's configuration file, YAML or JSON: the one named, or the one that `accelerate config` writes."""
    cache = Path(environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    folder = Path(environ.get("HF_HOME") or cache, "accelerate").expanduser()
    for path in [Path(file)] if file else [folder / "default_config.yaml", folder / "default_config.json"]:
        try:
            return path.read_text(encoding="utf-8", errors="replace")
        except OSError:  # accelerate reports it
            continue
    return ""
