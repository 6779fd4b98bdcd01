"""The table of adaptations that make training faster or record it."""

from __future__ import annotations

from cpu_train_stack import contract
from cpu_train_stack.adapt.adaptation import NOW, Adaptation, Releases, Situation
from cpu_train_stack.operators import library
from cpu_train_stack.speed.padding import ANSWERS, DECODERS, ENCODERS

OUTPUT_LAYER = "output-layer"
_4_46, _5_0 = Releases("transformers", "4.46"), Releases("transformers", "5.0")
_TRAINER, _MODELS = "transformers.trainer", "transformers.models.*.modeling_*"
_RANKS = "if Trainer trains with several ranks"
_HEADS = f"for heads whose loss does not depend on padding ({', '.join((*ENCODERS, *DECODERS))})"


def _too_old_for_scripts(situation: Situation) -> str | None:
    """`train` computes the loss itself; in scripts, the model has to."""
    return None if situation.in_train else Releases("transformers", "4.48").problem(situation)


def _no_kernels(_situation: Situation) -> str | None:
    return None if library.wanted(contract.KERNELS) else f"{contract.KERNELS}=torch, or an image without kernels"


SPEED_UPS = (
    Adaptation(
        "no-padding", "layers compute no padding, if the loss stays the same",
        (_5_0,), {NOW: "speed.no_padding:hook"}, when=_HEADS,
    ),
    Adaptation(
        ANSWERS, "the same for question answering, whose loss then excludes padding",
        (_5_0,), {NOW: "speed.no_padding:exclude_padding"}, when=_HEADS, is_default=False,
    ),
    Adaptation(
        "balanced-ranks", "all ranks of Trainer get nearly the same work; a step has the same rows",
        (_4_46,), {_TRAINER: "speed.balanced_ranks:hook"}, when=_RANKS,
    ),
    Adaptation(
        "gradient-buckets", "Trainer stores gradients once, in the memory that ranks exchange",
        (_4_46,), {_TRAINER: "speed.gradients:share_buckets"}, when=_RANKS,
    ),
    Adaptation(
        "word-rows", "Trainer exchanges only the rows in use of a word embedding's gradient",
        (_4_46,), {_TRAINER: "speed.gradients:exchange_rows"}, when=_RANKS,
    ),
    Adaptation(
        OUTPUT_LAYER, "language models compute scores only for tokens that have a label, together with the loss",
        (_4_46,), {_TRAINER: "speed.output_layer:hook"},
        when="if Trainer's model is a causal language model", obstacle=_too_old_for_scripts,
    ),
    Adaptation(
        "decoder-layers",
        "decoders compute normalization, rotary embeddings, SwiGLU and residual sums in one pass each",
        (_5_0,), {_MODELS: "speed.decoder_layers:hook"}, obstacle=_no_kernels,
        when="to models with the layers of Llama or with parts of them, on CPUs with AVX-512",
    ),
    Adaptation(
        "encoder-layers",
        "encoders compute dropout, residual sums and normalization in one pass, and GELU faster",
        (_5_0,), {_MODELS: "speed.encoder_layers:hook"}, obstacle=_no_kernels,
        when="to models with the layers of BERT, RoBERTa or DistilBERT, on CPUs with AVX-512",
    ),
    Adaptation(
        "lora", "LoRA adapters share the passes of their layer; frozen weights are stored in bf16", (_5_0,),
        {
            "peft.tuners.lora.layer": "speed.lora:hook_layers",
            "peft.tuners.lora.bnb": "speed.lora:hook_layers",
            _TRAINER: "speed.lora:hook_trainer",
        },
        when="if the script uses peft's LoRA",
    ),
    Adaptation(
        "progress", "the progress of a TrainJob is sent from a thread: no step waits for the answer",
        (_5_0,), {"transformers.integrations.integration_utils": "speed.progress:hook"},
        when="in a TrainJob whose operator asks for its progress",
    ),
    Adaptation(
        "step-records", "the steps of Trainer are recorded in its output folder, for `watch` and `report`",
        (_4_46,), {_TRAINER: "speed.step_clock:hook"}, when="if the script trains with Trainer",
    ),
)  # fmt: skip
# `train` has flags of its own for these: --train_sampling_strategy and --ddp_comm_hook.
ALWAYS_IN_TRAIN = frozenset({"balanced-ranks", "word-rows"})
