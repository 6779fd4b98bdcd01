"""A script that trains nothing, for launchers that are tested without transformers, whose import takes seconds."""

import os
import sys

import torch.distributed as dist

precision = os.environ.get("ACCELERATE_MIXED_PRECISION")
sys.stdout.write(f"rank {dist.get_rank()} of {dist.get_world_size()}, {dist.get_backend()}, {precision}\n")
