"""A causal language model with Trainer, as in Hugging Face's scripts: prints the losses of steps and evaluation.

Usage: decoder.py KIND: plain, accumulated, adapter, prompts, softcap, or reads-scores.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import transformers
from datasets import Dataset
from peft import LoraConfig, PromptTuningConfig, get_peft_model

ROWS, TOKENS, WORDS = 24, 12, 60
SIZES = {
    "vocab_size": WORDS,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}


def rows() -> Dataset:
    ids = torch.randint(0, WORDS, (ROWS, TOKENS))
    labels = ids.clone()
    labels[:, : TOKENS // 2] = -100
    return Dataset.from_dict({"input_ids": ids.tolist(), "labels": labels.tolist()})


def model_of(kind: str) -> Any:
    if kind == "softcap":
        config = transformers.Gemma2Config(**SIZES, num_key_value_heads=1, head_dim=8, final_logit_softcapping=2.0)
        return transformers.Gemma2ForCausalLM(config)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES))
    if kind == "adapter":
        return get_peft_model(model, LoraConfig(task_type="CAUSAL_LM"))
    if kind == "prompts":
        return get_peft_model(model, PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3))
    return model


class ReadsScores(transformers.Trainer):
    """Reads the scores, as TRL's trainers do."""

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **options: Any) -> Any:
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **options)
        assert outputs.logits.shape[-1] == WORDS
        return (loss, outputs) if return_outputs else loss


def main(kind: str) -> None:
    transformers.set_seed(1)
    arguments = transformers.TrainingArguments(
        "/tmp/decoder", per_device_train_batch_size=2, num_train_epochs=2, learning_rate=0.05, seed=1,
        gradient_accumulation_steps=2 if kind == "accumulated" else 1, save_strategy="no", logging_steps=1,
        disable_tqdm=True, report_to=[], optim="sgd", max_grad_norm=0.0,
    )  # fmt: skip
    create = ReadsScores if kind == "reads-scores" else transformers.Trainer
    data = rows()
    trainer = create(
        model_of(kind), arguments, train_dataset=data, eval_dataset=data,
        preprocess_logits_for_metrics=lambda scores, _labels: scores.argmax(-1),
        compute_metrics=lambda found: {"right": float((found.predictions == 5).mean())},
    )  # fmt: skip
    trainer.train()
    metrics = trainer.evaluate()
    losses = [float(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry]
    if trainer.is_world_process_zero():
        print(
            kind, *(f"{loss:.6f}" for loss in [*losses, metrics["eval_loss"], metrics["eval_right"]]), flush=True
        )


for kind in sys.argv[1:]:
    main(kind)
