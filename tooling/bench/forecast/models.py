"""The parameters and the work of a model, computed from its config. Nothing is downloaded."""

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.files import parse_json, read_given

_COUNT = re.compile(r"(\d+(?:\.\d+)?)([kmb]?)", re.I)
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9}
# The share of word embeddings in a model with a known number of parameters only. 9% in BERT-large, 21% in
# BERT-base, 35% in DistilBERT, 52% in MiniLM-L6.
_UNKNOWN_EMBEDDINGS = 0.2
_MOST = 10**15


@dataclass(frozen=True)
class Model:
    """`products`: parameters by which each token is multiplied. `quadratic`: layers x width, for attention."""

    name: str
    parameters: int
    embeddings: int
    products: int
    quadratic: int

    def flops(self, length: float) -> float:
        """The floating-point operations to train on one sample of `length` tokens.

        Forward takes two for each parameter and token, and two for each element of attention's two products of
        length x length x width in each layer. Backward takes twice as many (Kaplan et al. 2020, arXiv:2001.08361,
        section 2.1).
        """
        return 3.0 * length * (2 * self.products + 4 * length * self.quadratic)


# The keys of layers, width, inner width and vocabulary, in the configs of BERT, and of DistilBERT.
_SIZES = ("num_hidden_layers", "hidden_size", "intermediate_size", "vocab_size")
_DISTILBERT = ("n_layers", "dim", "hidden_dim", "vocab_size")


def _bert(*sizes: int, positions: int = 512, types: int = 2) -> Mapping[str, Any]:
    more = {"max_position_embeddings": positions, "type_vocab_size": types}
    return dict(zip(_SIZES, sizes, strict=True)) | more


def _distilbert(*sizes: int) -> Mapping[str, Any]:
    more = {"model_type": "distilbert", "max_position_embeddings": 512}
    return dict(zip(_DISTILBERT, sizes, strict=True)) | more


def _llama(*sizes: int, heads: int, kv_heads: int, **more: Any) -> Mapping[str, Any]:
    config = {"rms_norm_eps": 1e-5, "num_attention_heads": heads, "num_key_value_heads": kv_heads}
    return dict(zip(_SIZES, sizes, strict=True)) | config | more


# Parts of each model's config.json on the Hugging Face hub. The counts do not include the head of a task.
KNOWN: dict[str, Mapping[str, Any]] = {
    "bert-base-cased": _bert(12, 768, 3072, 28996),
    "bert-base-uncased": _bert(12, 768, 3072, 30522),
    "bert-large-cased": _bert(24, 1024, 4096, 28996),
    "bert-large-uncased": _bert(24, 1024, 4096, 30522),
    "distilbert-base-cased": _distilbert(6, 768, 3072, 28996),
    "distilbert-base-uncased": _distilbert(6, 768, 3072, 30522),
    "all-MiniLM-L6-v2": _bert(6, 384, 1536, 30522),
    "all-MiniLM-L12-v2": _bert(12, 384, 1536, 30522),
    "roberta-base": _bert(12, 768, 3072, 50265, positions=514, types=1),
    "roberta-large": _bert(24, 1024, 4096, 50265, positions=514, types=1),
    "xlm-roberta-base": _bert(12, 768, 3072, 250002, positions=514, types=1),
    "TinyLlama-1.1B": _llama(22, 2048, 5632, 32000, heads=32, kv_heads=4),
    "Llama-3.2-1B": _llama(16, 2048, 8192, 128256, heads=32, kv_heads=8, tie_word_embeddings=True),
    "Qwen2.5-0.5B": _llama(
        24, 896, 4864, 151936, heads=14, kv_heads=2, tie_word_embeddings=True, model_type="qwen2"
    ),
}
# Short names. They mean the uncased models.
_SHORT = {
    "bert-base": "bert-base-uncased",
    "bert-large": "bert-large-uncased",
    "distilbert-base": "distilbert-base-uncased",
    "distilbert": "distilbert-base-uncased",
    "minilm": "all-MiniLM-L6-v2",
    "minilm-l6": "all-MiniLM-L6-v2",
    "minilm-l12": "all-MiniLM-L12-v2",
}


def find(text: str) -> Model:
    """Find a model by its name, number of parameters (110M), config.json or folder. Raises UsageError."""
    if match := _COUNT.fullmatch(text):
        given = float(match[1]) * _UNITS[match[2].lower()]
        if not 1000 <= given <= _MOST:
            raise UsageError(f"--model is {text!r}, expected 1000 to 1000000B parameters: 110M, for example")
        count = round(given)
        words = round(count * _UNKNOWN_EMBEDDINGS)
        return Model(f"{count:,} parameters", count, words, count - words, 0)
    path = Path(text)
    if path.is_dir():
        path = path / "config.json"
    if path.is_file():
        return read(path)
    wanted = text.rpartition("/")[2].lower()
    by_name = {name.lower(): name for name in KNOWN}
    name = _SHORT.get(wanted) or by_name.get(wanted)
    if name is None:
        near = difflib.get_close_matches(wanted, [*by_name, *_SHORT], n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise UsageError(
            f"--model is {text!r}, which is neither a known name nor a config.json{hint}: pass the number of "
            f"parameters (110M), a config.json, or one of: {', '.join(KNOWN)}"
        )
    return _count(name, KNOWN[name])


def read(file: Path) -> Model:
    """Read a config.json. Raises UsageError for unknown kinds of models."""
    try:
        config = parse_json(read_given(file))
    except (OSError, ValueError) as error:
        raise UsageError(f"--model {file}: {error}: expected a model's config.json") from None
    if not isinstance(config, dict):
        raise UsageError(f"--model {file}: expected an object, as in a model's config.json")
    if key := _unknown_layers(config):
        raise UsageError(
            f"--model {file}: {config.get('model_type', 'a model')} has {key} {config[key]!r}, which is not "
            "counted: pass the number of parameters (110M) instead"
        )
    name = str(config.get("_name_or_path") or file.resolve().parent.name)
    try:
        return _count(name, config)
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"--model {file}: {config.get('model_type', 'a model')}: {error} is not an integer above 0: expected "
            "a config like that of BERT, DistilBERT or Llama; pass the number of parameters (110M) instead"
        ) from None


# Experts, layers that share weights, and embeddings of another width: the count of parameters would be wrong.
_UNKNOWN_LAYERS = ("num_local_experts", "num_experts", "n_routed_experts", "num_hidden_groups")
# Of GPT-NeoX, Phi, Starcoder2 and ModernBERT, whose layers are counted by neither function.
_OF_OTHERS = re.compile("num_key_value_heads|.*(rope|rotary).*")


def _is_decoder(config: Mapping[str, Any]) -> bool:
    """Old Llamas have no num_key_value_heads. OLMo, StableLM and Cohere have gated layers, but no RMS norms."""
    return "rms_norm_eps" in config or ("num_key_value_heads" in config and config.get("hidden_act") == "silu")


def _unknown_layers(config: Mapping[str, Any]) -> str | None:
    """The first key of a part that is not counted, or None."""
    found = [key for key in _UNKNOWN_LAYERS if config.get(key)]
    if not _is_decoder(config):
        found += [key for key in config if config[key] and _OF_OTHERS.fullmatch(key)]
    if config.get("embedding_size", config.get("hidden_size")) != config.get("hidden_size"):
        found.append("embedding_size")
    return next(iter(found), None)


def _count(name: str, config: Mapping[str, Any]) -> Model:
    return (_decoder if _is_decoder(config) else _encoder)(name, config)


def _encoder(name: str, config: Mapping[str, Any]) -> Model:
    """BERT and related models, with a pooler, and DistilBERT."""
    distil = config.get("model_type") == "distilbert"
    layers, width, inner, words = (_positive(config, key) for key in (_DISTILBERT if distil else _SIZES))
    types = 0 if distil or not config.get("type_vocab_size") else _positive(config, "type_vocab_size")
    embeddings = (words + _positive(config, "max_position_embeddings") + types + 2) * width
    products = layers * (4 * width * width + 2 * width * inner)
    biases_and_norms = layers * (9 * width + inner)
    pooler = 0 if distil else width * width + width
    total = embeddings + products + biases_and_norms + pooler
    return Model(name, total, words * width, products, layers * width)


def _decoder(name: str, config: Mapping[str, Any]) -> Model:
    """Llama and related models: gated layers, RMS norms."""
    kind = str(config.get("model_type"))
    layers, width, inner, words = (_positive(config, key) for key in _SIZES)
    heads = _positive(config, "num_attention_heads")
    shared = heads if config.get("num_key_value_heads") is None else _positive(config, "num_key_value_heads")
    of_head = _positive(config, "head_dim") if config.get("head_dim") else width // heads
    queries, keys = heads * of_head, shared * of_head
    layer = 2 * width * (queries + keys) + 3 * width * inner
    biases = queries + 2 * keys if kind == "qwen2" else 0
    # A config leaves out what is the default of its class: Gemma's output layer shares the word embeddings.
    tied = config.get("tie_word_embeddings", kind.startswith(("gemma", "cohere")))
    total = layers * (layer + biases + 2 * width) + width + words * width * (1 if tied else 2)
    # A tied output layer multiplies, too.
    return Model(name, total, words * width, layers * layer + words * width, layers * queries)


def _positive(config: Mapping[str, Any], name: str) -> int:
    """Raises KeyError with the name if the value is not an integer from 1 on."""
    value = config.get(name)
    if not isinstance(value, int) or value < 1:
        raise KeyError(name)
    return value
