"""A classifier as people write it for Trainer, in the words of transformers 4: run by the tests, unmodified.

Writes metrics.json to the output folder and prints what a test wants to know of the run.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

import evaluate
import torch
from datasets import load_dataset
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
    is_torch_tpu_available,
    set_seed,
)
from transformers.trainer_utils import get_last_checkpoint
from transformers.utils import send_example_telemetry


@dataclass
class DataArguments:
    model_name_or_path: str = field(metadata={"help": "The model's folder."})
    train_file: str = field(metadata={"help": "A csv with the columns text and label."})
    validation_file: str = field(metadata={"help": "The same for evaluation."})


def main() -> None:
    parser = HfArgumentParser((DataArguments, TrainingArguments))
    if len(sys.argv) == 2 and sys.argv[1].endswith(".json"):
        data, training = parser.parse_json_file(json_file=sys.argv[1])
    else:
        data, training = parser.parse_args_into_dataclasses()
    send_example_telemetry("classify", data)
    if Path(training.output_dir).is_dir() and not training.overwrite_output_dir:
        found = get_last_checkpoint(training.output_dir)
        if found is None and any(Path(training.output_dir).iterdir()):
            raise ValueError(f"{training.output_dir} is not empty")
    set_seed(training.seed)
    files = {"train": data.train_file, "validation": data.validation_file}
    splits = load_dataset("csv", data_files=files)
    names = sorted(splits["train"].unique("label"))
    tokenizer = AutoTokenizer.from_pretrained(data.model_name_or_path)
    model = AutoModelForSequenceClassification.from_pretrained(data.model_name_or_path, num_labels=len(names))

    def encode(rows):  # type: ignore[no-untyped-def]
        labels = [names.index(one) for one in rows["label"]]
        return {**tokenizer(rows["text"], truncation=True), "labels": labels}

    with training.main_process_first(desc="encode"):
        splits = splits.map(encode, batched=True, remove_columns=splits["train"].column_names)
    metric = evaluate.load("accuracy")

    def compute_metrics(prediction):  # type: ignore[no-untyped-def]
        return metric.compute(predictions=prediction.predictions.argmax(axis=1), references=prediction.label_ids)

    trainer = Trainer(
        model=model,
        args=training,
        train_dataset=splits["train"],
        eval_dataset=splits["validation"],
        compute_metrics=None if is_torch_tpu_available() else compute_metrics,
        tokenizer=tokenizer,
        data_collator=DataCollatorWithPadding(tokenizer),
    )
    trained = trainer.train()
    if training.use_legacy_prediction_loop or training.tpu_metrics_debug:
        raise ValueError("there is no such loop")
    metrics = trainer.evaluate()
    trainer.save_model()
    if trainer.is_world_process_zero():
        seen = {
            "train_loss": trained.training_loss,
            "eval_loss": metrics["eval_loss"],
            "accuracy": metrics["eval_accuracy"],
            "steps": trained.global_step,
            "world_size": training.world_size,
            "backend": torch.distributed.get_backend(),
            "rows_per_rank": len(trainer.get_train_dataloader()) * training.per_device_train_batch_size,
            "pid": os.getpid(),
        }
        (Path(training.output_dir) / "metrics.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main()
