"""Processes that exit with a call in flight, repeatedly: none may crash.

    python exits.py FOLDER [--rounds 200]

In each round, two ranks create a group, start calls that the other rank never makes, with or without a callback,
and reach the end of the script. All ranks are forked from one process that has imported torch.
"""

from __future__ import annotations

import argparse
import atexit
import importlib
import os
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from transport import variables

# Rounds, most of whose time is a wait.
AT_ONCE = 5
stopped = threading.Event()


@atexit.register
def pause() -> None:
    stopped.set()
    time.sleep(0.1)


# Registers the backend, and a handler that stops it. Handlers run last in, first out: before the one above.
importlib.import_module("oneccl_bindings_for_pytorch")


def run_rank(folder: Path, number: int, rank: int) -> None:
    os.environ.update(variables(rank, 2))
    store = dist.FileStore(str(folder / str(number)), 2)
    dist.init_process_group("ccl", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=60))
    dist.barrier()
    if rank == number % 2:
        work = dist.all_reduce(torch.ones(100_000), async_op=True)
        if number % 3 == 0:
            work.get_future().then(lambda done: print(done))
        if number % 5 == 0:  # a thread that is inside the backend when the process exits
            threading.Thread(target=work.wait, daemon=True).start()
        if number % 5 == 1:  # a thread that enters it after the backend has stopped
            threading.Thread(target=lambda: stopped.wait() and work.wait(), daemon=True).start()
    else:
        dist.irecv(torch.ones(5))
    if number % 7 == 0:
        dist.destroy_process_group()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=200)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for first in range(0, arguments.rounds, AT_ONCE):
        children = {}
        for number in range(first, min(first + AT_ONCE, arguments.rounds)):
            for rank in range(2):
                child = os.fork()
                if child == 0:
                    run_rank(arguments.folder, number, rank)
                    sys.exit(0)
                children[child] = number, rank
        for child, (number, rank) in children.items():
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            if code != 0:
                print(f"round {number}: rank {rank} exited with {code}")
                return 1
    print(f"{2 * arguments.rounds} processes exited with 0")
    return 0


if __name__ == "__main__":
    sys.exit(main())
