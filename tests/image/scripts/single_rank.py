"""What a job of one rank looks like to Trainer, to accelerate and to child processes: run by the tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

seen: dict[str, Any] = {"had_group": dist.is_initialized(), "rank": int(os.environ["RANK"])}
shell = "echo $RANK$WORLD_SIZE$LOCAL_RANK$TORCHELASTIC_RUN_ID$MASTER_ADDR"
seen["child"] = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, check=True).stdout.strip()
rows = [{"input_ids": [1, 2, 3], "attention_mask": [1, 1, 1], "labels": i % 2} for i in range(8)]
model = BertForSequenceClassification(
    BertConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
)
args = TrainingArguments("/tmp/single", max_steps=1, report_to=[], save_strategy="no")
trainer: Any = Trainer(model, args, train_dataset=rows)
trainer.train()
seen["mode"], seen["local_rank"], seen["wrapped"] = (
    args.parallel_mode.value,
    args.local_rank,
    type(trainer.model_wrapped).__name__,
)
accelerator = Accelerator()
accelerator.wait_for_everyone()
seen["kind"] = str(accelerator.distributed_type)
seen["group_after_training"] = dist.is_initialized()
if "ddp" in sys.argv:  # without init_process_group: the group is created when it is needed
    wrapped = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1, bias=False))
    wrapped(torch.ones(1, 2)).sum().backward()
    seen["gradient"] = wrapped.module.weight.grad.tolist()
else:
    for init_method in (None, "tcp://127.0.0.1:1"):
        dist.init_process_group("nccl", init_method=init_method, rank=0, world_size=1)
        total = torch.ones(2)
        dist.all_reduce(total)
        dist.barrier()
        seen["sum"] = [dist.get_backend(), dist.get_rank(), dist.get_world_size(), total.tolist()]
        dist.destroy_process_group()
print(json.dumps(seen))
