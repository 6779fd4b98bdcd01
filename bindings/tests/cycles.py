"""One rank that makes groups and leaves them, again and again, and says what that left behind.

    torchrun --nproc-per-node N cycles.py [--cycles 200] [--backend ccl]

Each cycle: a default group, a group of all ranks beside it, a collective in both, and the end of both. Rank 0
prints one JSON document: memory, open files, threads and files in /dev/shm after a few cycles and after all.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

# Libraries load and caches fill in the first cycles.
WARM_UP = 20


def allocated() -> int:
    """What the program has allocated, as tcmalloc counts it; 0 without tcmalloc.

    Resident memory also has what tcmalloc keeps of threads that have ended, some megabytes that it reuses later.
    """
    try:
        ask = ctypes.CDLL(None).MallocExtension_GetNumericProperty
    except AttributeError:
        return 0
    value = ctypes.c_size_t(0)
    ask(b"generic.current_allocated_bytes", ctypes.byref(value))
    return value.value


def count(folder: str) -> int:
    return sum(1 for _ in Path(folder).iterdir())


def measure() -> dict[str, int]:
    """Of this process: resident and allocated bytes, mappings, open files, threads. And the files in /dev/shm."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "memory": pages * os.sysconf("SC_PAGE_SIZE"),
        "allocated": allocated(),
        "mappings": len(Path("/proc/self/maps").read_text().splitlines()),
        "files": count("/proc/self/fd"),
        "threads": count("/proc/self/task"),
        "shared": count("/dev/shm"),  # noqa: S108  where the backend's files are
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cycles", type=int, default=200)
    parser.add_argument("--backend", default="ccl")
    arguments = parser.parse_args()
    if arguments.backend == "ccl":
        import oneccl_bindings_for_pytorch  # noqa: F401  registers the backend
    if dist.is_initialized():
        dist.destroy_process_group()
    torch.set_num_threads(1)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    stores = f"{tempfile.gettempdir()}/cycles-{os.environ['MASTER_PORT']}"
    timeout = timedelta(seconds=60)
    early = measure()
    begin = time.monotonic()
    for cycle in range(arguments.cycles):
        store = dist.FileStore(f"{stores}-{cycle}", size)  # a new one, since it remembers every key
        dist.init_process_group(arguments.backend, store=store, rank=rank, world_size=size, timeout=timeout)
        for group in (None, dist.new_group()):
            number = torch.tensor([rank + 1.0])
            dist.all_reduce(number, group=group)
            if number.item() != size * (size + 1) / 2:
                raise AssertionError(f"cycle {cycle}: the sum is {number.item()}")
        dist.destroy_process_group()
        del store, group
        if cycle + 1 == WARM_UP:
            early = measure()
    seconds = round(time.monotonic() - begin, 1)
    if rank == 0:
        print(json.dumps({"cycles": arguments.cycles, "seconds": seconds, "early": early, "late": measure()}))


if __name__ == "__main__":
    main()
