"""A script of `accelerate launch`."""

import os
import sys

rank, ranks, precision = (os.environ.get(name) for name in ("RANK", "WORLD_SIZE", "ACCELERATE_MIXED_PRECISION"))
sys.stdout.write(f"rank {rank} of {ranks}, {precision}\n")
