"""Cases of ranks that detect a dead peer: rank 1 ends by SIGKILL. Each case raises if it fails."""

from __future__ import annotations

import os
import signal
import subprocess
import time

import torch
import torch.distributed as dist
from cases import check, error_of


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def check_death(error: str, place: str) -> None:
    reason = "cannot complete: rank 1 has ended, or its host cannot be reached any more"
    check(reason in error and place in error, f"the call raised {error!r}")
    os._exit(5)


def check_sum() -> None:
    error = error_of(lambda: dist.all_reduce(torch.ones(100)))
    check_death(error, f"group 0, rank {dist.get_rank()} of {dist.get_world_size()}")


def dead_rank() -> None:
    """Every other rank waits for a sum."""
    dist.barrier()
    if dist.get_rank() == 1:
        die()
    check_sum()


def dead_sender() -> None:
    """Rank 0 waits for a message."""
    dist.barrier()
    if dist.get_rank() == 1:
        die()
    check_death(error_of(lambda: dist.recv(torch.ones(1), 1)), "group 0, rank 0 of 2")


def dead_rank_with_children() -> None:
    """Children inherit the connections of the dead rank, like those of a DataLoader."""
    dist.barrier()
    if dist.get_rank() == 1:
        subprocess.Popen(["sleep", "300"], close_fds=False)
        if os.fork() == 0:
            time.sleep(300)
        die()
    check_sum()


def dead_rank_of_a_part() -> None:
    """A group of ranks 0, 1 and 3 names the dead rank by its number in the job."""
    group = dist.new_group([0, 1, 3])
    dist.barrier()
    if dist.get_rank() == 1:
        die()
    if dist.get_rank() == 2:
        os._exit(5)
    place = f"rank {dist.get_rank(group)} of 3"
    check_death(error_of(lambda: dist.all_reduce(torch.ones(100), group=group)), place)
