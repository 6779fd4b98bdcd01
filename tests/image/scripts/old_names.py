"""Names of transformers 4 that users' own scripts import and call: run by the tests, unmodified."""

from __future__ import annotations

import json

import torch
from transformers import AdamW, AutoTokenizer, deepspeed
from transformers.deepspeed import is_deepspeed_zero3_enabled
from transformers.file_utils import cached_property
from transformers.modeling_utils import apply_chunking_to_forward
from transformers.trainer import ALL_LAYERNORM_LAYERS, is_torch_tpu_available, nested_numpify
from transformers.trainer_utils import EvaluationStrategy

assert deepspeed.is_deepspeed_zero3_enabled is is_deepspeed_zero3_enabled
assert all((cached_property, apply_chunking_to_forward, ALL_LAYERNORM_LAYERS, nested_numpify))
assert not is_torch_tpu_available(check_device=False)
assert EvaluationStrategy.EPOCH.value == "epoch"

tokenizer = AutoTokenizer.from_pretrained("/data/tiny")
row = tokenizer.encode_plus("good", max_length=8, pad_to_max_length=True, truncation=True, return_tensors="pt")
pairs = tokenizer.batch_encode_plus([("good", "bad"), ("bad", "good")], padding=True)
plain = tokenizer(["good", "bad"], ["bad", "good"], padding=True)
with tokenizer.as_target_tokenizer():
    labels = tokenizer(["good"])["input_ids"]
weights = []
for correct_bias in (True, False):
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = AdamW([weight], lr=0.1, eps=0.0, weight_decay=0.5, correct_bias=correct_bias)
    (2 * weight).sum().backward()
    optimizer.step()
    weights.append(weight.item())
print(
    json.dumps(
        {
            "length": row["input_ids"].shape[1],
            "pairs": pairs["input_ids"] == plain["input_ids"],
            "labels": labels == tokenizer(text_target=["good"])["input_ids"],
            "weights": weights,
        }
    )
)
