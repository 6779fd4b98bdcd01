"""Measure the samples per second of a training loop, under any launcher.

    launch --nproc-per-node 2 -- run examples/throughput.py
    torchrun --nproc-per-node 2 examples/throughput.py
    python -m torch.backends.xeon.run_cpu examples/throughput.py

A BERT of MiniLM's size learns random labels of random tokens in bf16. With several ranks, the loop uses
DistributedDataParallel, and the batch is divided among the ranks. Rank 0 prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from transformers import BertConfig, BertForSequenceClassification

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--batch", type=int, default=16, help="samples per step, over all ranks")
parser.add_argument("--length", type=int, default=128, help="tokens per sample")
parser.add_argument("--steps", type=int, default=10, help="measured steps")
parser.add_argument("--warm-up", type=int, default=3, help="steps before the measured steps")
options = parser.parse_args()

if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not dist.is_initialized():
    dist.init_process_group("gloo")
ranks = dist.get_world_size() if dist.is_initialized() else 1
rank = dist.get_rank() if dist.is_initialized() else 0

torch.manual_seed(0)
config = BertConfig(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536)
model: torch.nn.Module = BertForSequenceClassification(config)
if ranks > 1:
    model = DistributedDataParallel(model)
fused = torch.__version__ >= "2.4"  # torch 2.4 and newer have a fused AdamW for CPUs
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=fused)
mine = options.batch // ranks
tokens = torch.randint(0, config.vocab_size, (mine, options.length))
labels = torch.randint(0, 2, (mine,))

began = 0.0
for step in range(options.warm_up + options.steps):
    if step == options.warm_up:
        began = time.perf_counter()
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(input_ids=tokens, labels=labels).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
seconds = time.perf_counter() - began

if rank == 0:
    mapped = Path("/proc/self/maps").read_text()
    found = {
        "samples_per_second": mine * ranks * options.steps / seconds,
        "ranks": ranks,
        "backend": dist.get_backend() if ranks > 1 else None,
        "threads": torch.get_num_threads(),
        "cpus": len(os.sched_getaffinity(0)),
        "preloads": [name for name in ("libtcmalloc", "libiomp5") if name in mapped],
        "loss": loss.item(),
    }
    print(json.dumps(found), flush=True)
if dist.is_initialized():
    dist.destroy_process_group()
