"""Sum a number over all ranks. Each rank prints the sum, its cores and its threads.

    ./inv up --nodes 2 --data examples -- run /data/allreduce.py

`run` creates the process group before the script starts.
"""

from __future__ import annotations

import os
import socket

import torch
import torch.distributed as dist

number = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(number)
print(
    f"rank {dist.get_rank()} of {dist.get_world_size()} on {socket.gethostname()}: "
    f"the sum is {number.item():.0f}, cores {sorted(os.sched_getaffinity(0))}, threads {torch.get_num_threads()}",
    flush=True,
)
