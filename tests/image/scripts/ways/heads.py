"""Heads of models, which compute means of their own, and language models, which divide by the number of labels."""

from __future__ import annotations

import torch
from common import (
    ANSWERS,
    CLASSES,
    DECODER,
    EQUAL_TEXTS,
    GPT2,
    MASKED,
    SHARES,
    SMALL,
    TAGS,
    TEXTS,
    VALUES,
    Way,
    of,
    rows,
    trainer,
)

SEQ2SEQ_T5 = {
    "vocab_size": 24, "d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2, "dropout_rate": 0.0,
    "decoder_start_token_id": 0,
}  # fmt: skip
SEQ2SEQ_BART = {
    "vocab_size": 24, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "dropout": 0.0,
    "max_position_embeddings": 32,
}  # fmt: skip
DISTIL = {
    "vocab_size": 24, "dim": 16, "hidden_dim": 16, "n_layers": 1, "n_heads": 2, "dropout": 0.0,
    "attention_dropout": 0.0, "seq_classif_dropout": 0.0, "max_position_embeddings": 32,
}  # fmt: skip
EXPERTS = {**DECODER, "num_local_experts": 2, "num_experts_per_tok": 1, "output_router_logits": True,
           "router_aux_loss_coef": 0.5}  # fmt: skip
QWEN_EXPERTS = {**DECODER, "num_experts": 2, "num_experts_per_tok": 1, "output_router_logits": True,
                "router_aux_loss_coef": 0.5, "moe_intermediate_size": 8, "head_dim": 8}  # fmt: skip
PIXELS = [
    {"pixel_values": torch.rand(3, 8, 8, generator=torch.Generator().manual_seed(n)), "labels": n % 2}
    for n in range(16)
]
IMAGE = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16,
         "image_size": 8, "patch_size": 4, "hidden_dropout_prob": 0.0}  # fmt: skip
SEVERAL = rows(lambda _number, words: {"labels": [float(word % 2) for word in words[:3]]})
DECODED = rows(lambda _number, words: {"labels": words, "decoder_input_ids": [0, *words[:-1]]})
MODERN = {**SMALL, "pad_token_id": 0, "cls_token_id": 1, "sep_token_id": 2, "bos_token_id": 1, "eos_token_id": 2}

WAYS = {
    "BERT, two classes": Way(trainer(of("BertForSequenceClassification"), CLASSES)),
    "BERT, a number": Way(trainer(of("BertForSequenceClassification", num_labels=1), VALUES)),
    "BERT, several labels": Way(
        trainer(
            of("BertForSequenceClassification", num_labels=3, problem_type="multi_label_classification"), SEVERAL
        )
    ),
    "BERT, tags": Way(trainer(of("BertForTokenClassification", num_labels=3), TAGS)),
    "BERT, answers": Way(trainer(of("BertForQuestionAnswering"), ANSWERS)),
    "BERT, hidden words": Way(trainer(of("BertForMaskedLM"), MASKED)),
    "ModernBERT, hidden words": Way(trainer(of("ModernBertForMaskedLM", MODERN), MASKED)),
    "ModernBERT, two classes": Way(trainer(of("ModernBertForSequenceClassification", MODERN), CLASSES)),
    "RoBERTa, two classes": Way(trainer(of("RobertaForSequenceClassification"), CLASSES)),
    "DistilBERT, two classes": Way(trainer(of("DistilBertForSequenceClassification", DISTIL), CLASSES)),
    "DeBERTa, two classes": Way(trainer(of("DebertaV2ForSequenceClassification"), CLASSES)),
    "ELECTRA, two classes": Way(trainer(of("ElectraForSequenceClassification"), CLASSES)),
    "ViT, two classes": Way(trainer(of("ViTForImageClassification", IMAGE), PIXELS)),
    "Llama, two classes": Way(trainer(of("LlamaForSequenceClassification", DECODER), CLASSES)),
    "GPT-2, two classes": Way(trainer(of("GPT2ForSequenceClassification", GPT2), CLASSES)),
    "Llama": Way(trainer(of("LlamaForCausalLM", DECODER), TEXTS)),
    "Llama, other numbers of labels": Way(trainer(of("LlamaForCausalLM", DECODER), SHARES)),
    "Llama, label smoothing": Way(
        trainer(of("LlamaForCausalLM", DECODER), SHARES), {"label_smoothing_factor": 0.1}
    ),
    "Llama, checkpointing": Way(
        trainer(of("LlamaForCausalLM", DECODER), SHARES), {"gradient_checkpointing": True}
    ),
    "Llama, bf16": Way(trainer(of("LlamaForCausalLM", DECODER), SHARES), {"bf16": True}),
    "GPT-2": Way(trainer(of("GPT2LMHeadModel", GPT2), SHARES)),
    "Qwen3": Way(trainer(of("Qwen3ForCausalLM", {**DECODER, "head_dim": 8}), SHARES)),
    "Mixtral, router's loss": Way(trainer(of("MixtralForCausalLM", EXPERTS), EQUAL_TEXTS)),
    "Qwen3-MoE, router's loss": Way(trainer(of("Qwen3MoeForCausalLM", QWEN_EXPERTS), EQUAL_TEXTS)),
    "T5": Way(trainer(of("T5ForConditionalGeneration", SEQ2SEQ_T5), TEXTS)),
    "T5, label smoothing": Way(
        trainer(of("T5ForConditionalGeneration", SEQ2SEQ_T5), DECODED), {"label_smoothing_factor": 0.1}
    ),
    "BART": Way(trainer(of("BartForConditionalGeneration", SEQ2SEQ_BART), TEXTS)),
}
