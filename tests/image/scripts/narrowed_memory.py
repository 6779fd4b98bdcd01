"""Runs inside the image under `run`: how much memory it takes to train an adapter in bf16, beside fp32 weights.

The values of the weights are exact in bf16.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments


def memory(name: str) -> int:
    """VmRSS or VmHWM of this process, in bytes."""
    found = re.search(rf"^{name}:\s*(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found
    return int(found[1]) * 1024


shape = {"hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 8, "num_key_value_heads": 8}
model = LlamaForCausalLM(LlamaConfig(vocab_size=100, num_hidden_layers=6, **shape))
with torch.no_grad():
    for weight in model.parameters():
        weight.copy_(weight.bfloat16())
weights = sum(weight.numel() * 4 for weight in model.parameters())
adapted = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", r=2, target_modules="all-linear"))
rows = Dataset.from_list([{"input_ids": [1, 2, 3, 4], "labels": [1, 2, 3, 4]}] * 2)
options = {"output_dir": "/tmp/out", "use_cpu": True, "bf16": True, "max_steps": 2, "report_to": []}
trainer = Trainer(model=adapted, args=TrainingArguments(**options), train_dataset=rows)
before = memory("VmRSS")
trainer.train()
grown = memory("VmHWM") - before
print(json.dumps({"weights": weights, "grown": grown}))
