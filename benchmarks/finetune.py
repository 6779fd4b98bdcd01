"""Fine-tunes a model with Trainer, as Hugging Face's example scripts do, and prints its speed as one line of JSON.

torchrun --nproc-per-node 2 finetune.py --job distilbert-qa --use_cpu --bf16 --output_dir /tmp/out
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import HfArgumentParser, Trainer, TrainingArguments, set_seed

from benchmarks import jobs, models
from benchmarks.stopwatch import Stopwatch


@dataclass
class BenchArguments:
    job: str = field(metadata={"help": ", ".join(jobs.BY_NAME)})
    seconds: float = field(default=15.0, metadata={"help": "Approximate time of the measured steps."})
    steps: int = field(default=0, metadata={"help": "Measured steps; 0: as many as fit in --seconds."})
    profile: bool = field(default=False, metadata={"help": "Profile some more steps with torch's profiler."})
    data: str = field(default="", metadata={"help": "A file of rows; without it, the tokens are random."})
    ipex: bool = field(default=False, metadata={"help": "Optimize model and optimizer with IPEX."})
    trl: bool = field(default=False, metadata={"help": "Train with TRL's SFTTrainer, its collator and defaults."})


def optimized(model: Any, arguments: TrainingArguments) -> tuple[Any, Any]:
    """The model and Trainer's default optimizer, optimized by IPEX as in IPEX's examples."""
    import intel_extension_for_pytorch as ipex

    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.learning_rate)
    dtype = torch.bfloat16 if arguments.bf16 else torch.float32
    both: tuple[Any, Any] = ipex.optimize(model.train(), optimizer=optimizer, dtype=dtype)
    return both


def main() -> None:
    own, words = HfArgumentParser(BenchArguments).parse_args_into_dataclasses(return_remaining_strings=True)
    if own.trl:
        from trl import SFTConfig, SFTTrainer

        settings: Any = SFTConfig
    else:
        settings = TrainingArguments
    (arguments,) = HfArgumentParser(settings).parse_args_into_dataclasses(words)
    job = jobs.BY_NAME[own.job]
    arguments = dataclasses.replace(
        arguments,
        per_device_train_batch_size=job.batch,
        max_steps=1_000_000,  # the stopwatch ends the training
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        logging_strategy="no",
    )
    set_seed(arguments.seed)
    samples, collator = models.data(job, Path(own.data) if own.data else None)
    model, optimizer = models.create(job), None
    if own.ipex:
        model, optimizer = optimized(model, arguments)
    stopwatch = Stopwatch(own.seconds, own.steps, own.profile)
    stopwatch.count_tokens(model)
    options = {"model": model, "args": arguments, "train_dataset": samples, "callbacks": [stopwatch]}
    if own.trl:
        trainer = SFTTrainer(**options, processing_class=models.tokenizer(job))
        trainer.data_collator = stopwatch.recording(trainer.data_collator)
    else:
        trainer = Trainer(**options, data_collator=stopwatch.recording(collator), optimizers=(optimizer, None))
    trainer.train()
    report = stopwatch.report(arguments.per_device_train_batch_size)
    if trainer.is_world_process_zero():
        print(report, flush=True)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
