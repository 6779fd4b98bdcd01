"""One rank that repeatedly creates and leaves groups, and reports the resources that remain.

    torchrun --nproc-per-node N cycles.py [--cycles 200] [--backend ccl]

Each cycle creates a default group and another group of all ranks, runs a collective in both, and destroys both.
Rank 0 prints a JSON document: memory, open files, threads and files in /dev/shm, after the first cycles and at the
end.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import importlib
import json
import os
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

# The first cycles load libraries and fill caches.
WARM_UP = 20


def allocated() -> int:
    """The bytes that the program has allocated, according to tcmalloc; 0 without tcmalloc.

    Resident memory includes some megabytes that tcmalloc keeps of threads that have ended, and reuses later.
    """
    try:
        get_property = ctypes.CDLL(None).MallocExtension_GetNumericProperty
    except AttributeError:
        return 0
    value = ctypes.c_size_t(0)
    get_property(b"generic.current_allocated_bytes", ctypes.byref(value))
    return value.value


def count(folder: str) -> int:
    return sum(1 for _ in Path(folder).iterdir())


def measure() -> dict[str, int]:
    """Resident and allocated bytes, mappings, open files and threads of this process; the files in /dev/shm."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "memory": pages * os.sysconf("SC_PAGE_SIZE"),
        "allocated": allocated(),
        "mappings": len(Path("/proc/self/maps").read_text().splitlines()),
        "files": count("/proc/self/fd"),
        "threads": count("/proc/self/task"),
        "shared": count("/dev/shm"),  # noqa: S108  the path of libfabric's files
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cycles", type=int, default=200)
    parser.add_argument("--backend", default="ccl")
    arguments = parser.parse_args()
    if arguments.backend == "ccl":
        importlib.import_module("oneccl_bindings_for_pytorch")  # registers the backend
    if dist.is_initialized():
        dist.destroy_process_group()
    torch.set_num_threads(1)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    stores = f"{tempfile.gettempdir()}/cycles-{os.environ['MASTER_PORT']}"
    timeout = timedelta(seconds=60)
    early = measure()
    begin = time.monotonic()
    for cycle in range(arguments.cycles):
        store = dist.FileStore(f"{stores}-{cycle}", size)  # a new file, since a store keeps every key
        dist.init_process_group(arguments.backend, store=store, rank=rank, world_size=size, timeout=timeout)
        for group in (None, dist.new_group()):
            number = torch.tensor([rank + 1.0])
            dist.all_reduce(number, group=group)
            if number.item() != size * (size + 1) / 2:
                raise AssertionError(f"cycle {cycle}: the sum is {number.item()}")
        dist.destroy_process_group()
        del store, group
        if cycle + 1 == WARM_UP:
            time.sleep(1)  # until the other ranks have left, too
            early = measure()
    seconds = round(time.monotonic() - begin, 1)
    time.sleep(1)
    if rank == 0:
        print(json.dumps({"cycles": arguments.cycles, "seconds": seconds, "early": early, "late": measure()}))


if __name__ == "__main__":
    main()
