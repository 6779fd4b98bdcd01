"""One rank trains on 16 rows with 6 accumulation steps: the last update has 4."""

from __future__ import annotations

import tempfile

import own
from transformers import TrainingArguments

with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder,
        per_device_train_batch_size=1,
        gradient_accumulation_steps=6,
        num_train_epochs=1,
        save_strategy="no",
        report_to=[],
    )
    trainer = own.WAYS["own loss by steps"].build(arguments)
    trainer.train()
    assert trainer.state.global_step == 3, trainer.state.global_step
