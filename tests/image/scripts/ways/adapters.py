"""Adapters of peft: LoRA and its variants, IA3, prompts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import peft
from common import CLASSES, SHARES, TEXTS, Way, bert, llama, trainer

LAYERS = ["q_proj", "v_proj"]


def _adapted(kind: Any, model: Callable[[], Any] = llama, task: str = "CAUSAL_LM", **options: Any) -> Any:
    return lambda: peft.get_peft_model(model(), kind(task_type=task, **options))


WAYS = {
    "LoRA": Way(trainer(_adapted(peft.LoraConfig, target_modules=LAYERS), SHARES)),
    "rsLoRA": Way(trainer(_adapted(peft.LoraConfig, target_modules=LAYERS, use_rslora=True), SHARES)),
    "DoRA": Way(trainer(_adapted(peft.LoraConfig, target_modules=LAYERS, use_dora=True), SHARES)),
    "AdaLoRA": Way(
        trainer(_adapted(peft.AdaLoraConfig, target_modules=LAYERS, total_step=9, tinit=1, tfinal=1), TEXTS)
    ),
    "AdaLoRA of BERT": Way(
        trainer(
            _adapted(
                peft.AdaLoraConfig, bert, "SEQ_CLS", target_modules=["query"], total_step=9, tinit=1, tfinal=1
            ),
            CLASSES,
        )
    ),
    "LoRA of BERT and its head": Way(
        trainer(_adapted(peft.LoraConfig, bert, "SEQ_CLS", target_modules=["query"]), CLASSES)
    ),
    "IA3": Way(
        trainer(
            _adapted(peft.IA3Config, target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"]),
            SHARES,
        )
    ),
    "VeRA": Way(trainer(_adapted(peft.VeraConfig, target_modules=["q_proj"], r=4), SHARES)),
    "LoHa": Way(trainer(_adapted(peft.LoHaConfig, target_modules=LAYERS), SHARES)),
    "prompt tuning": Way(trainer(_adapted(peft.PromptTuningConfig, num_virtual_tokens=3), SHARES)),
    "p-tuning": Way(
        trainer(_adapted(peft.PromptEncoderConfig, num_virtual_tokens=3, encoder_hidden_size=16), SHARES)
    ),
    "prefix tuning": Way(trainer(_adapted(peft.PrefixTuningConfig, num_virtual_tokens=3), SHARES)),
}
