"""Checks models whose weights were saved in 16 bits.

In bfloat16: their adapter and their new head are trained in float32. In float16: without autocast, all of it is.
Also checks that an adapter of one of two tied layers is merged into that layer only, and that BERT keeps the
bias that is tied, too.
"""

from __future__ import annotations

import tempfile

import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForQuestionAnswering,
    LlamaForSequenceClassification,
    LlamaForTokenClassification,
)

from cpu_train_stack.train.flags.arguments import TaskArguments
from cpu_train_stack.train.model import adapters, pretrained
from cpu_train_stack.train.tasks import generation, registry

MODELS = {
    "text-classification": LlamaForSequenceClassification,
    "token-classification": LlamaForTokenClassification,
    "question-answering": LlamaForQuestionAnswering,
}
config = LlamaConfig(
    vocab_size=50, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2, pad_token_id=0
)
for task, kind in MODELS.items():
    model = adapters.attach(
        kind(config).bfloat16(), registry.TASKS[task], TaskArguments(model_name_or_path="x", use_peft=True)
    )
    for is_autocast in (True, False):
        with torch.autocast("cpu", torch.bfloat16, enabled=is_autocast):
            model(input_ids=torch.arange(1, 9)[None])[0].float().sum().backward()
    trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    heads = [name for name in trained if "lora" not in name]
    assert {name.split(".")[2] for name in heads} <= {"score", "qa_outputs"}, heads
    assert heads
    assert all(weight.dtype == weight.grad.dtype == torch.float32 for weight in trained.values())
    assert all(weight.dtype == torch.bfloat16 for weight in model.parameters() if not weight.requires_grad)
    model.eval().bfloat16()  # as Trainer does with --bf16_full_eval
    model(input_ids=torch.arange(1, 9)[None])
for bf16, expected in ((False, torch.float32), (True, torch.float16)):
    model = LlamaForTokenClassification(config).half()
    pretrained.widen(model, is_frozen=True, bf16=bf16)
    assert {weight.dtype for weight in model.parameters()} == {expected}

config.tie_word_embeddings = True
bert = BertConfig(vocab_size=50, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2)
ids = torch.arange(1, 9)[None]
for kind, settings, layers in (
    (LlamaForCausalLM, config, "lm_head,q_proj"),
    (LlamaForCausalLM, config, "embed_tokens,q_proj"),
    (BertForMaskedLM, bert, "decoder,query"),
    (BertForMaskedLM, bert, "word_embeddings,query"),
):
    arguments = TaskArguments(model_name_or_path="x", use_peft=True, lora_target_modules=layers)
    task = "text-generation" if kind is LlamaForCausalLM else "fill-mask"
    model = adapters.attach(kind(settings).eval(), registry.TASKS[task], arguments).eval()
    for name, weight in model.named_parameters():
        if "lora_" in name or name.endswith("predictions.bias"):
            torch.nn.init.normal_(weight)
    if task == "text-generation":
        generation._check_decoder(model, packed=True)
    expected = model(input_ids=ids).logits
    with tempfile.TemporaryDirectory() as folder:
        adapters.merge(model).save_pretrained(folder)
        found = kind.from_pretrained(folder).eval()(input_ids=ids).logits
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
