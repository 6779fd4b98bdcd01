"""Load the pretrained model and its tokenizer, and refuse models without pretrained weights."""

from __future__ import annotations

import contextlib
import functools
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable

import torch
import transformers

from cpu_train_stack.cli import packages
from cpu_train_stack.cli.errors import UsageError, path_hint
from cpu_train_stack.train.data.labels import REGRESSION
from cpu_train_stack.train.data.types import Rows
from cpu_train_stack.train.flags.arguments import TaskArguments
from cpu_train_stack.train.flags.training_arguments import changed
from cpu_train_stack.train.model import adapters, configuration, quantization, sharding
from cpu_train_stack.train.model.configuration import first_line

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_WEIGHTS = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
_VOCABULARIES = (
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "tokenizer.model",
    "sentencepiece.bpe.model",
    "spiece.model",
)
# A tokenizer without a limit has a huge number as its model_max_length.
_NO_LIMIT = 1_000_000


@dataclass(frozen=True)
class Loaded:
    """`limit`: the longest input in tokens that model and tokenizer allow, None if there is no limit."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    limit: int | None
    notes: tuple[str, ...]


def check_folder(name: str) -> None:
    """Check a local model folder without loading it. Accepts names on the hub. Raises UsageError."""
    folder = Path(name)
    try:
        names = [] if not folder.is_dir() else sorted(folder.iterdir())
        closed = [path for path in names if not os.access(path, os.R_OK)]
    except PermissionError:
        closed = [folder]
    if closed:
        raise UsageError(f"'{closed[0]}' cannot be read by user {os.getuid()}: change its mode (chmod -R a+rX)")
    if not folder.exists():
        if name.startswith(("/", ".", "~")) or name.count("/") > 1:
            raise UsageError(f"model folder '{name}' does not exist: {path_hint(name)}")
        return
    if not folder.is_dir():
        raise UsageError(f"model '{name}' is a file, expected a folder with config.json and model.safetensors")
    base = adapters.base_of(name)
    if base is not None:
        if not any((folder / weights).is_file() for weights in adapters.WEIGHTS):
            raise UsageError(f"adapter folder '{name}' has no weights, expected {adapters.WEIGHTS[0]}")
        if base.startswith("/") and not Path(base).exists():
            raise UsageError(
                f"'{name}' is an adapter of the model '{base}', which does not exist: mount its folder there, as "
                "in the training, or use the merged model that train --merge_adapter writes"
            )
        check_folder(base)
        return
    if not (folder / "config.json").is_file():
        raise UsageError(f"model folder '{name}' has no config.json; expected a folder saved by save_pretrained")
    if not any((folder / weights).is_file() for weights in _WEIGHTS):
        raise UsageError(
            f"model folder '{name}' has no weights, expected model.safetensors: it must be pretrained"
        )


def widen(model: Any, is_frozen: bool, bf16: bool) -> None:
    """Store the weights in float32, if their own dtype would make the training less precise.

    transformers 5 keeps the dtype of the saved weights. Small steps are lost in bf16 weights, so that only frozen
    weights may be bf16. Small gradients are lost in float16, unless autocast computes in bf16.
    """
    for tensor in (*model.parameters(), *model.buffers()):
        narrow = tensor.dtype is torch.float16 and not bf16 if is_frozen else tensor.is_floating_point()
        if narrow:
            tensor.data = tensor.data.float()


def load(
    arguments: TaskArguments,
    tokenizer: PreTrainedTokenizerBase,
    rows: Rows,
    bf16: bool = False,
    shards: int = 1,
    checkpoint: Path | None = None,
) -> Loaded:
    """Load the model for the task of `rows`. Set the seed before: a new head has random weights.

    `bf16`: matrix products are computed in bf16. `shards`: the number of ranks that share the model; 1 if each
    rank has the complete model. A sharded model reads its weights from the `checkpoint`; for other models, Trainer
    loads the checkpoint.

    Raises UsageError if the model cannot be loaded, or if most of the weights are missing.
    """
    given = str(arguments.model_name_or_path)
    name = adapters.base_of(given) or given
    auto: Any = getattr(transformers, rows.task.auto_class)
    options: dict[str, Any] = {"revision": arguments.model_revision}
    if rows.labels is not None:
        options["num_labels"] = len(rows.labels)
        options["id2label"] = dict(enumerate(rows.labels))
        options["label2id"] = {label: index for index, label in enumerate(rows.labels)}
    if rows.problem_type is not None:
        options["problem_type"] = rows.problem_type
    if rows.problem_type == REGRESSION:
        options["num_labels"] = 1
    # Replace the head of a classifier with other labels.
    options["ignore_mismatched_sizes"] = "num_labels" in options
    if shards > 1:
        options.update(sharding.options(shards))
    if arguments.load_in_4bit:
        heads = _heads(auto, arguments) if rows.task.peft_type in adapters.WITH_HEAD else ()
        options.update(quantization.options(bf16, heads))
    reading = _read_into_memory() if shards == 1 else contextlib.nullcontext()
    weights = str(checkpoint) if checkpoint and shards > 1 and not adapters.is_adapter(checkpoint) else name
    if rows.task.is_decoder and configuration.read(arguments).is_encoder_decoder:
        raise UsageError(
            f"model '{name}' is an encoder-decoder model, expected a decoder: to train it on pairs of texts, pass "
            "--task text2text-generation"
        )
    labels = configuration.other_labels(arguments, rows)
    random_state = torch.get_rng_state()
    try:
        with reading:
            model, info = auto.from_pretrained(weights, output_loading_info=True, **options)
    except Exception as error:
        raise UsageError(
            f"model '{name}' cannot be loaded for {rows.task.name}: {first_line(error)}: "
            f"{configuration.remedy(error)}, or copy the model again"
        ) from error
    if len(tokenizer) > model.get_input_embeddings().num_embeddings:
        raise UsageError(
            f"the tokenizer has {len(tokenizer)} tokens, but model '{name}' has embeddings for "
            f"{model.get_input_embeddings().num_embeddings}: pass the model's own tokenizer as --tokenizer_name"
        )
    if arguments.load_in_4bit:
        quantization.keep_layout(model)
    mismatched = [entry[0] if isinstance(entry, tuple) else entry for entry in info.get("mismatched_keys", ())]
    new = sorted({*info.get("missing_keys", ()), *mismatched})
    _refuse_random_weights(name, model, new)
    if mismatched and rows.train is None and checkpoint is None and name == given:
        raise UsageError(
            f"model '{name}' has a head for another number of labels than the data, which have "
            f"{len(rows.labels or ['number'])}: pass data with the model's labels, or train it with --train_file"
        )
    # The head of a checkpoint has the data's labels.
    replaced = [] if labels is None or mismatched or weights != name else configuration.head_of(model, auto)
    if shards > 1 or replaced:
        sharding.initialize(model, [*(new if shards > 1 else ()), *replaced], random_state)
        sharding.clear_biases(model, replaced)
    new = sorted({*new, *replaced})
    if shards == 1:
        widen(model, is_frozen=arguments.use_peft or name != given, bf16=bf16)
    # The forward of some classifiers has **kwargs only to pass them on. Trainer then assumes that the model
    # divides its loss by the number of items, and multiplies loss and gradients by ranks and accumulation steps
    # (transformers 5.0 to 5.24, huggingface/transformers#47688). A mean over equal batches needs no correction;
    # tokens.TokenLoss computes means over tokens.
    model.accepts_loss_kwargs = False
    limit = _limit(model, tokenizer)
    adapted = adapters.attach(model, rows.task, arguments, new)
    whole = adapters.trained_whole(adapted)
    if shards > 1 and whole:
        raise UsageError(
            f"--fsdp cannot train {', '.join(whole)} beside an adapter: remove --fsdp, or train all weights "
            "without --use_peft"
        )
    if name != given:
        new = adapters.not_saved(adapted, new)
    note = f"new weights, not pretrained: {', '.join(new[:4])}{' ...' if len(new) > 4 else ''}" if new else None
    notes = tuple(filter(None, (labels, note)))
    return Loaded(adapted, tokenizer, limit, notes)


def _read_into_memory() -> contextlib.AbstractContextManager[None]:
    """Inside the block, transformers 5 reads the tensors of safetensors files one at a time.

    It maps the files otherwise. A mapped weight that changes, for example its dtype, is in memory twice until the
    last weight of its file has changed.
    """
    if packages.release(transformers.__version__) < packages.release("5.0.0"):
        return contextlib.nullcontext()
    names = transformers.modeling_utils
    return changed(names, "safe_open", functools.partial(_open, names.safe_open))


def _open(original: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    return original(*arguments, **{**options, "backend": "pread"})


def _heads(auto: Any, arguments: TaskArguments) -> list[str]:
    """The modules that are not loaded in 4 bits: the head, and poolers, which may be new."""
    with torch.device("meta"):
        model = auto.from_config(configuration.read(arguments))
    poolers = (name for name, _ in model.named_modules() if name.endswith("pooler"))
    return sorted({*adapters.heads_of(model), *poolers})


def load_tokenizer(arguments: TaskArguments, pads: bool) -> PreTrainedTokenizerBase:
    """Load the model's tokenizer. `pads`: whether it needs a padding token. Raises UsageError."""
    given = str(arguments.model_name_or_path)
    # An adapter's folder may have its own tokenizer, for example with another chat template.
    has_own = any((Path(given) / vocabulary).is_file() for vocabulary in _VOCABULARIES)
    name = str(arguments.tokenizer_name or (given if has_own else adapters.base_of(given) or given))
    folder = Path(name)
    # transformers 5 silently creates an empty tokenizer for a folder without a vocabulary.
    if folder.is_dir() and not any((folder / vocabulary).is_file() for vocabulary in _VOCABULARIES):
        raise UsageError(
            f"tokenizer folder '{name}' has no vocabulary: add tokenizer.json, or pass --tokenizer_name"
        )
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(name, revision=arguments.model_revision)
    except Exception as error:
        raise UsageError(f"tokenizer '{name}' cannot be loaded: {first_line(error)}") from error
    if not tokenizer.is_fast:
        raise UsageError(f"tokenizer '{name}' is a slow tokenizer, expected a tokenizer with tokenizer.json")
    if pads and tokenizer.pad_token_id is None:
        raise UsageError(f"tokenizer '{name}' has no padding token, expected an encoder's tokenizer")
    return tokenizer


def _refuse_random_weights(name: str, model: Any, new: list[str]) -> None:
    """Refuse a model whose body is mostly random: the weights belong to another model. A new head is allowed."""
    prefix = f"{model.base_model_prefix}."
    sizes = {key: value.numel() for key, value in model.named_parameters()}
    # The names of an encoder-decoder model may have no prefix.
    body = {key: size for key, size in sizes.items() if key.startswith(prefix)} or sizes
    missing = sum(body.get(key, 0) for key in new)
    if body and missing > sum(body.values()) / 2:
        raise UsageError(
            f"model '{name}': {len([key for key in new if key in body])} of {len(body)} weights of a "
            f"{type(model).__name__} are missing, expected a pretrained model: choose another model"
        )


def _limit(model: Any, tokenizer: Any) -> int | None:
    positions = getattr(configuration.text_of(model.config), "max_position_embeddings", None)
    limits = [] if not positions or positions < 1 else [int(positions)]
    for module_name, module in model.named_modules():
        # RoBERTa's positions start after the padding index: 514 rows hold 512 positions.
        if module_name.endswith("position_embeddings") and getattr(module, "padding_idx", None) is not None:
            limits.append(module.num_embeddings - module.padding_idx - 1)
    if tokenizer.model_max_length < _NO_LIMIT:
        limits.append(int(tokenizer.model_max_length))
    return min(limits, default=None)
