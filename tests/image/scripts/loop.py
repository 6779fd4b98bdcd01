"""A loop with accelerate, as the `_no_trainer` examples of transformers 4 are: run by the tests, unmodified.

Usage: loop.py MODEL TRAIN.csv VALIDATION.csv OUTPUT.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from datasets import load_dataset, load_metric
from huggingface_hub import Repository
from torch.utils.data import DataLoader
from transformers import AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding, get_scheduler
from transformers.utils import get_full_repo_name


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("model", "train", "validation", "output"):
        parser.add_argument(name)
    parser.add_argument("--push_to_hub", action="store_true")
    arguments = parser.parse_args()
    if arguments.push_to_hub:
        Repository(".", clone_from=get_full_repo_name("loop"))
    accelerator = Accelerator()
    set_seed(7)
    files = {"train": arguments.train, "validation": arguments.validation}
    splits = load_dataset("csv", data_files=files, use_auth_token=None)
    names = sorted(splits["train"].unique("label"))
    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    model = AutoModelForSequenceClassification.from_pretrained(
        arguments.model, num_labels=len(names), use_auth_token=None
    )

    def encode(rows):  # type: ignore[no-untyped-def]
        labels = [names.index(one) for one in rows["label"]]
        return {**tokenizer(rows["text"], truncation=True), "labels": labels}

    with accelerator.main_process_first():
        splits = splits.map(encode, batched=True, remove_columns=splits["train"].column_names)
    collate = DataCollatorWithPadding(tokenizer, pad_to_multiple_of=8 if accelerator.use_fp16 else None)
    train = DataLoader(splits["train"], shuffle=True, collate_fn=collate, batch_size=4)
    validation = DataLoader(splits["validation"], collate_fn=collate, batch_size=4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    scheduler = get_scheduler("linear", optimizer, num_warmup_steps=0, num_training_steps=len(train))
    model, optimizer, train, validation, scheduler = accelerator.prepare(
        model, optimizer, train, validation, scheduler
    )
    metric = load_metric("glue", "mrpc")
    steps = 0
    for batch in train:
        accelerator.backward(model(**batch).loss)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        steps += 1
    model.eval()
    rows = 0
    for batch in validation:
        with torch.no_grad():
            predictions = model(**batch).logits.argmax(dim=-1)
        predictions, references = accelerator.gather_for_metrics((predictions, batch["labels"]))
        rows += len(references)
        metric.add_batch(predictions=predictions, references=references)
    seen = metric.compute()
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        seen |= {
            "rows": rows,
            "steps": steps,
            "world_size": accelerator.num_processes,
            "backend": torch.distributed.get_backend(),
            "distributed": str(accelerator.distributed_type),
        }
        Path(arguments.output).write_text(json.dumps(seen))


if __name__ == "__main__":
    main()
