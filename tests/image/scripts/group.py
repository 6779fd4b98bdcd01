"""Makes the process group itself, as scripts for torchrun do. Usage: group.py same|other-size|twice."""

from __future__ import annotations

import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

how = sys.argv[1]
size = int(os.environ["WORLD_SIZE"]) + (how == "other-size")
dist.init_process_group("nccl", rank=int(os.environ["RANK"]), world_size=size, timeout=timedelta(seconds=9))
if how == "twice":
    dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
if dist.get_rank() == 0:
    print(dist.get_backend(), int(total))
dist.destroy_process_group()
