"""Models whose loss the output layer's sums cannot replace keep their own. Prints the names of the checks."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import torch
import transformers

from cpu_train_stack.adapt.adaptation import Situation
from cpu_train_stack.operators.output_layer import is_last, output_layer_of
from cpu_train_stack.speed import output_layer

SIZES = {
    "vocab_size": 60,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}
LLAMA = transformers.LlamaConfig(**SIZES)


def trainer() -> Any:
    return SimpleNamespace(
        label_smoother=None, compute_loss_func=None, is_fsdp_enabled=False, is_deepspeed_enabled=False,
        args=SimpleNamespace(torch_compile=False), model_accepts_loss_kwargs=True,
        accelerator=SimpleNamespace(autocast=contextlib.nullcontext),
    )  # fmt: skip


def is_replaced(model: Any) -> bool:
    return output_layer._output_layer(trainer(), model.train()) is not None


class OtherLabels(transformers.LlamaForCausalLM):
    def forward(self, input_ids: Any = None, labels: Any = None, **options: Any) -> Any:
        if labels is not None:
            labels = labels.masked_fill(labels == 7, -100)
        return super().forward(input_ids=input_ids, labels=labels, **options)


class WithoutMask(transformers.LlamaForCausalLM):
    def forward(self, input_ids: Any = None, labels: Any = None) -> Any:
        return super().forward(input_ids=input_ids, labels=labels)


class PenalizedScores(transformers.LlamaForCausalLM):
    """Adds to the loss what it reads from the scores, as models with a z-loss do."""

    def forward(self, **inputs: Any) -> Any:
        found = super().forward(**inputs)
        if found.loss is not None:
            found.loss = found.loss + found.logits.logsumexp(-1).square().mean()
        return found


def known_models() -> None:
    assert is_replaced(transformers.LlamaForCausalLM(LLAMA))
    assert is_replaced(
        transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=60, n_embd=16, n_layer=1, n_head=2))
    )
    assert is_replaced(transformers.LlamaForCausalLM(LLAMA).bfloat16())


def other_labels() -> None:
    assert not is_replaced(OtherLabels(LLAMA))


def other_arguments() -> None:
    assert not is_replaced(WithoutMask(LLAMA))


def penalized_scores() -> None:
    assert not is_replaced(PenalizedScores(LLAMA))


def encoder_and_decoder() -> None:
    model = transformers.T5ForConditionalGeneration(
        transformers.T5Config(
            vocab_size=60, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, decoder_start_token_id=0
        )
    )
    assert not is_replaced(model)


def modes_of_modules() -> None:
    for kind in (transformers.LlamaForCausalLM, OtherLabels, WithoutMask):
        model = kind(LLAMA).train()
        frozen = model.model.layers[0].eval()
        output_layer._output_layer(trainer(), model)
        assert [module for module in model.modules() if not module.training] == list(frozen.modules())


def sparse_attention() -> None:
    config = transformers.BigBirdConfig(**SIZES, block_size=4, num_random_blocks=2, max_position_embeddings=256)
    model = transformers.BigBirdForMaskedLM(config)
    assert output_layer_of(model, shift=False) is None
    assert model.bert.attention_type == "block_sparse"


def a_probe_that_fails() -> None:
    model = WithoutMask(LLAMA)
    output = output_layer_of(model, shift=True)
    assert output is not None
    assert not is_last(output, model)


def a_step_with_other_labels() -> None:
    """The probe's labels have no 7, as the labels of a real step may."""

    class SometimesOther(transformers.LlamaForCausalLM):
        def forward(self, input_ids: Any = None, labels: Any = None, **options: Any) -> Any:
            if labels is not None and len(labels) > 1:
                labels = labels.masked_fill(labels == 7, -100)
            return super().forward(input_ids=input_ids, labels=labels, **options)

    arguments = transformers.TrainingArguments("/tmp/other", report_to=[], disable_tqdm=True)
    for adapted in (False, True):
        transformers.set_seed(1)
        own = transformers.Trainer(SometimesOther(LLAMA), arguments)
        if adapted:
            module = SimpleNamespace(Trainer=type("Adapted", (transformers.Trainer,), {}))
            output_layer.hook(Situation((), {}, "gloo", rank=1), module)
            own.__class__ = module.Trainer
        tokens = torch.arange(24).reshape(2, 12)
        inputs = {"input_ids": tokens, "labels": tokens}
        losses = [float(own.compute_loss(own.model.train(), inputs)) for _ in range(2)]
        assert losses == EXPECTED or not adapted, losses
        EXPECTED[:] = losses


EXPECTED: list[float] = []


def main() -> None:
    for name, check in list(globals().items()):
        if (
            getattr(check, "__module__", "") == __name__
            and name not in {"main", "trainer", "is_replaced"}
            and not isinstance(check, type)
        ):
            torch.manual_seed(0)
            check()
            print(name, flush=True)


main()
