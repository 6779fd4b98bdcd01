"""Fine-tune a text classifier in bf16 with a loop of your own, under any launcher.

    launch --nproc-per-node 2 -- run finetune.py --model FOLDER --train train.csv --test test.csv --output FOLDER
    torchrun --nproc-per-node 2 finetune.py --model FOLDER ...

The files have the columns text and label. `./inv demo` runs this script on rows whose transformers is too
old for `train`. Each rank trains on its share of each batch with DistributedDataParallel. Rank 0 prints the losses
and writes OUTPUT/result.json.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoModelForSequenceClassification, AutoTokenizer

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
for name in ("model", "train", "test", "output"):
    parser.add_argument(f"--{name}", type=Path, required=True)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--batch", type=int, default=16, help="rows per step and rank")
parser.add_argument("--length", type=int, default=64, help="maximum tokens per row")
parser.add_argument("--learning-rate", type=float, default=2e-4)
parser.add_argument(
    "--ipex",
    action="store_true",
    help="optimize the model with IPEX: its weights become bf16, which gloo of torch 2.1 and older cannot sum",
)
options = parser.parse_args()
options.output.mkdir(parents=True, exist_ok=True)

if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not dist.is_initialized():
    dist.init_process_group("gloo")
ranks = dist.get_world_size() if dist.is_initialized() else 1
rank = dist.get_rank() if dist.is_initialized() else 0
batch = options.batch * ranks


def read(path: Path) -> tuple[list[str], list[str]]:
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return [row["text"] for row in rows], [row["label"] for row in rows]


def total(numbers: list[float]) -> list[float]:
    """Each number, summed over all ranks."""
    values = torch.tensor(numbers)
    if ranks > 1:
        dist.all_reduce(values)
    return [float(value) for value in values]


texts, names = read(options.train)
test_texts, test_names = read(options.test)
classes = sorted(set(names))
if len(texts) < batch:
    parser.error(
        f"{options.train} has {len(texts)} rows, expected at least {batch}: --batch on each of {ranks} ranks"
    )
if unknown := sorted(set(test_names) - set(classes)):
    parser.error(f"{options.test} has labels that {options.train} lacks: {', '.join(unknown)}")
labels, test_labels = (torch.tensor([classes.index(name) for name in some]) for some in (names, test_names))
tokenizer = AutoTokenizer.from_pretrained(options.model)
torch.manual_seed(42)
network = AutoModelForSequenceClassification.from_pretrained(options.model, num_labels=len(classes))
optimizer = torch.optim.AdamW(network.parameters(), lr=options.learning_rate, weight_decay=0.0)
if options.ipex:
    import intel_extension_for_pytorch as ipex

    network, optimizer = ipex.optimize(network.train(), optimizer=optimizer, dtype=torch.bfloat16)
# The layers of IPEX 2.1 have parameters that they do not use.
model = DistributedDataParallel(network, find_unused_parameters=options.ipex) if ranks > 1 else network
steps = options.epochs * (len(texts) // batch)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)


def logits(module: torch.nn.Module, some: list[str]) -> torch.Tensor:
    inputs = tokenizer(some, truncation=True, max_length=options.length, padding=True, return_tensors="pt")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return module(**inputs).logits


def accuracy() -> float:
    mine, expected = test_texts[rank::ranks], test_labels[rank::ranks]
    network.eval()
    correct = 0
    with torch.no_grad():
        for start in range(0, len(mine), options.batch):
            stop = start + options.batch
            correct += int((logits(network, mine[start:stop]).argmax(1) == expected[start:stop]).sum())
    network.train()
    return total([correct])[0] / len(test_texts)


before = accuracy()
torch.manual_seed(42 + rank)  # each rank draws its own dropout
order = torch.Generator().manual_seed(42)
losses: list[float] = []
began = time.time()
for _ in range(options.epochs):
    epoch = torch.randperm(len(texts), generator=order)
    for rows in epoch[: len(epoch) // batch * batch].split(batch):
        mine = rows[rank::ranks]
        scores = logits(model, [texts[row] for row in mine])
        loss = torch.nn.functional.cross_entropy(scores.float(), labels[mine])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if rank == 0 and len(losses) % 10 == 0:
            print(f"step {len(losses)} of {steps}: loss {losses[-1]:.4f}", flush=True)
seconds = time.time() - began

means = [loss / ranks for loss in total(losses)]
after = accuracy()
if rank == 0:
    result = {
        "world_size": ranks,
        "backend": dist.get_backend() if dist.is_initialized() else None,
        "bf16": scores.dtype == torch.bfloat16,
        "train_samples_per_second": len(losses) * batch / seconds,
        "train_loss_first": sum(means[:10]) / len(means[:10]),
        "train_loss_last": sum(means[-10:]) / len(means[-10:]),
        "metric_name": "accuracy",
        "metric_before": before,
        "metric_after": after,
        "steps": len(losses),
        "train_started_at": began,
        "seconds": {"train": seconds},
    }
    (options.output / "result.json").write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result), flush=True)
if dist.is_initialized():
    dist.destroy_process_group()
