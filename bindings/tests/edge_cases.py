"""Runs edge cases, each on ranks of its own: two, or the number in CASE:RANKS.

    entrypoint run --backend gloo --no-adapt all edge_cases.py CASE[:RANKS]...

The ranks are forked from this process, which has imported torch. Prints a JSON document for each case: the exit
codes of the ranks, their output, and the files that they have left in /dev/shm.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from cases import TIMEOUT
from transport import variables

MODULES = ("callback_cases", "creation_cases", "death_cases", "error_cases", "group_cases")
LIMIT_SECONDS = 100.0
SHARED = Path("/dev/shm")  # noqa: S108


def case_named(name: str) -> Callable[[], None]:
    found: list[Callable[[], None]] = [
        vars(module)[name] for module in map(importlib.import_module, MODULES) if name in vars(module)
    ]
    if len(found) != 1:
        sys.exit(f"{len(found)} cases are named {name}, expected one")
    return found[0]


def run_rank(case: Callable[[], None], rank: int, ranks: int, port: int) -> NoReturn:
    place = {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": ranks}
    os.environ.update({name: str(value) for name, value in place.items()})
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    for name, value in variables(rank, ranks).items():
        os.environ.setdefault(name, value)
    dist.init_process_group("ccl", timeout=TIMEOUT)
    case()
    with contextlib.suppress(RuntimeError):
        dist.destroy_process_group()
    sys.exit(0)


def codes_of(children: list[int]) -> list[int | str]:
    """The exit codes of the ranks. Those that do not end are killed."""
    codes: list[int | str] = [f"did not end within {LIMIT_SECONDS:g} s"] * len(children)
    end = time.monotonic() + LIMIT_SECONDS
    running = dict(enumerate(children))
    while running and time.monotonic() < end:
        for rank, child in list(running.items()):
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                codes[rank] = os.waitstatus_to_exitcode(status)
                del running[rank]
        time.sleep(0.02)
    for child in running.values():
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return codes


def run_case(name: str, ranks: int, port: int) -> dict[str, Any]:
    case = case_named(name)
    kept = os.dup(1), os.dup(2)
    with tempfile.TemporaryFile("w+") as log:
        for stream in (1, 2):
            os.dup2(log.fileno(), stream)
        children = []
        for rank in range(ranks):
            child = os.fork()
            if child == 0:
                run_rank(case, rank, ranks, port)
            children.append(child)
        codes = codes_of(children)
        for stream in (1, 2):
            os.dup2(kept[stream - 1], stream)
            os.close(kept[stream - 1])
        log.seek(0)
        output = log.read()
    left = [file.name for file in SHARED.iterdir() if "__KMP_REGISTERED_LIB" not in file.name]
    return {"case": name, "codes": codes, "output": output, "left": left}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("cases", nargs="+")
    importlib.import_module("oneccl_bindings_for_pytorch")  # registers the backend
    torch.set_num_threads(1)
    dist.destroy_process_group()  # the one of `run`
    for number, word in enumerate(parser.parse_args().cases):
        name, _, ranks = word.partition(":")
        print(json.dumps(run_case(name, int(ranks or 2), 29500 + number)), flush=True)


if __name__ == "__main__":
    main()
