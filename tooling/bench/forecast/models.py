"""The parameters and the work of a model, computed from its config. Nothing is downloaded."""

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cpu_train_stack.machine.files import parse_json, read_given
from tooling.basis.errors import UsageError

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


@dataclass(frozen=True)
class Encoder:
    """BERT and related models. `positions`, `types`: rows of the position and token type embeddings."""

    layers: int
    hidden: int
    intermediate: int
    vocabulary: int
    positions: int = 512
    types: int = 2
    pooler: bool = True

    def model(self, name: str) -> Model:
        width = self.hidden
        embeddings = (self.vocabulary + self.positions + self.types) * width + 2 * width
        products = self.layers * (4 * width * width + 2 * width * self.intermediate)
        biases_and_norms = self.layers * (4 * width + self.intermediate + width + 4 * width)
        pooler = width * width + width if self.pooler else 0
        total = embeddings + products + biases_and_norms + pooler
        return Model(name, total, self.vocabulary * width, products, self.layers * width)


@dataclass(frozen=True)
class Decoder:
    """Llama and related models: gated layers, RMS norms. `tied`: the output layer shares the word embeddings."""

    layers: int
    hidden: int
    intermediate: int
    vocabulary: int
    heads: int
    kv_heads: int
    head_width: int
    tied: bool
    qkv_biases: bool = False

    def model(self, name: str) -> Model:
        queries, keys = self.heads * self.head_width, self.kv_heads * self.head_width
        layer = 2 * self.hidden * (queries + keys) + 3 * self.hidden * self.intermediate
        biases = queries + 2 * keys if self.qkv_biases else 0
        words = self.vocabulary * self.hidden
        products = self.layers * layer + words  # a tied output layer multiplies, too
        total = self.layers * (layer + biases + 2 * self.hidden) + self.hidden + words * (1 if self.tied else 2)
        return Model(name, total, words, products, self.layers * queries)


# Source: each model's config.json on the Hugging Face hub. The counts do not include the head of a task.
KNOWN: dict[str, Encoder | Decoder] = {
    "bert-base-cased": Encoder(12, 768, 3072, 28996),
    "bert-base-uncased": Encoder(12, 768, 3072, 30522),
    "bert-large-cased": Encoder(24, 1024, 4096, 28996),
    "bert-large-uncased": Encoder(24, 1024, 4096, 30522),
    "distilbert-base-cased": Encoder(6, 768, 3072, 28996, types=0, pooler=False),
    "distilbert-base-uncased": Encoder(6, 768, 3072, 30522, types=0, pooler=False),
    "all-MiniLM-L6-v2": Encoder(6, 384, 1536, 30522),
    "all-MiniLM-L12-v2": Encoder(12, 384, 1536, 30522),
    "roberta-base": Encoder(12, 768, 3072, 50265, positions=514, types=1),
    "roberta-large": Encoder(24, 1024, 4096, 50265, positions=514, types=1),
    "xlm-roberta-base": Encoder(12, 768, 3072, 250002, positions=514, types=1),
    "TinyLlama-1.1B": Decoder(22, 2048, 5632, 32000, 32, 4, 64, tied=False),
    "Llama-3.2-1B": Decoder(16, 2048, 8192, 128256, 32, 8, 64, tied=True),
    "Qwen2.5-0.5B": Decoder(24, 896, 4864, 151936, 14, 2, 64, tied=True, qkv_biases=True),
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
    return KNOWN[name].model(name)


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
        return (_decoder(config) if _is_decoder(config) else _encoder(config)).model(name)
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"--model {file}: {config.get('model_type', 'a model')}: {error} is not an integer above 0: expected "
            "a config like that of BERT, DistilBERT or Llama; pass the number of parameters (110M) instead"
        ) from None


# Experts, layers that share weights, and embeddings of another width: the count of parameters would be wrong.
_UNKNOWN_LAYERS = ("num_local_experts", "num_experts", "n_routed_experts", "num_hidden_groups")
# Of GPT-NeoX, Phi, Starcoder2 and ModernBERT, whose layers are neither `Encoder`'s nor `Decoder`'s.
_OF_OTHERS = re.compile("num_key_value_heads|.*(rope|rotary).*")


def _is_decoder(config: Mapping[str, Any]) -> bool:
    """Old Llamas have no num_key_value_heads. OLMo, StableLM and Cohere have gated layers, but no RMS norms."""
    return "rms_norm_eps" in config or ("num_key_value_heads" in config and config.get("hidden_act") == "silu")


def _unknown_layers(config: Mapping[str, Any]) -> str | None:
    """The first key of a part that `Encoder` and `Decoder` do not have, or None."""
    found = [key for key in _UNKNOWN_LAYERS if config.get(key)]
    if not _is_decoder(config):
        found += [key for key in config if config[key] and _OF_OTHERS.fullmatch(key)]
    if config.get("embedding_size", config.get("hidden_size")) != config.get("hidden_size"):
        found.append("embedding_size")
    return next(iter(found), None)


# The keys of layers, width and inner width.
_BERT = ("num_hidden_layers", "hidden_size", "intermediate_size")
_DISTILBERT = ("n_layers", "dim", "hidden_dim")


def _encoder(config: Mapping[str, Any]) -> Encoder:
    distil = config.get("model_type") == "distilbert"
    sizes = (*(_DISTILBERT if distil else _BERT), "vocab_size", "max_position_embeddings")
    layers, width, inner, vocabulary, positions = (_positive(config, name) for name in sizes)
    types = 0 if distil or not config.get("type_vocab_size") else _positive(config, "type_vocab_size")
    return Encoder(layers, width, inner, vocabulary, positions, types, pooler=not distil)


def _decoder(config: Mapping[str, Any]) -> Decoder:
    kind = str(config.get("model_type"))
    sizes = (*_BERT, "vocab_size", "num_attention_heads")
    layers, width, inner, vocabulary, heads = (_positive(config, name) for name in sizes)
    return Decoder(
        layers,
        width,
        inner,
        vocabulary,
        heads,
        _positive(config, "num_key_value_heads") if config.get("num_key_value_heads") is not None else heads,
        _positive(config, "head_dim") if config.get("head_dim") else width // heads,
        # A config leaves out what is the default of its class: Gemma's is True.
        tied=bool(config.get("tie_word_embeddings", kind.startswith(("gemma", "cohere")))),
        qkv_biases=kind == "qwen2",
    )


def _positive(config: Mapping[str, Any], name: str) -> int:
    """Raises KeyError with the name if the value is not an integer from 1 on."""
    value = config.get(name)
    if not isinstance(value, int) or value < 1:
        raise KeyError(name)
    return value
