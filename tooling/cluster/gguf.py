"""Unpack a Llama model from a GGUF file, as llama.cpp's tools write it, into a model folder of transformers.

The file has everything: the configuration, the tokenizer with its chat template, and the weights, of which most
are quantized. The folder's weights are in fp16.
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md describes the format.
"""

import json
import math
import struct
from pathlib import Path
from typing import IO, Any

import numpy as np

# The tensors outside the layers, and those of layer N, which begin with blk.N.
_OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# Values of metadata by the number of their type. 8 is a text, 9 an array.
_NUMBERS = dict(enumerate(("<B", "<b", "<H", "<h", "<I", "<i", "<f", "<?"))) | {10: "<Q", 11: "<q", 12: "<d"}
_TEXT, _ARRAY = 8, 9
# Tensors by the number of their type: fp32, and blocks of 32 numbers of 4 and of 8 bits.
_BLOCK = 32
_F32, _Q4_1, _Q8_0 = 0, 3, 8
_BLOCKS = {
    _F32: np.dtype([("number", "<f4", 1)]),
    _Q4_1: np.dtype([("scale", "<f2"), ("least", "<f2"), ("pairs", "u1", _BLOCK // 2)]),
    _Q8_0: np.dtype([("scale", "<f2"), ("number", "i1", _BLOCK)]),
}
_CONTROL = 3  # the type of special tokens
_ALIGNMENT = 32


def unpack(file: IO[bytes], folder: Path) -> None:
    """Write the model in the seekable `file` to the folder."""
    facts, infos = _header(file)
    start = math.ceil(file.tell() / _ALIGNMENT) * _ALIGNMENT
    heads = {"attn_q": facts["llama.attention.head_count"], "attn_k": facts["llama.attention.head_count_kv"]}
    weights = {}
    for name, (shape, kind, offset) in infos.items():
        file.seek(start + offset)
        tensor = _tensor(file, shape, kind)
        *layer, short, _ = name.split(".")
        if short in heads:
            tensor = _halves(tensor, heads[short])
        full = f"model.layers.{layer[1]}.{_LAYER[short]}" if layer else _OUTER[short]
        weights[f"{full}.weight"] = tensor.astype("<f2")
    _save(weights, folder / "model.safetensors")
    for part, document in (
        ("config", _config(facts)),
        ("tokenizer", _tokenizer(facts)),
        ("tokenizer_config", _tokenizer_config(facts)),
    ):
        text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
        (folder / f"{part}.json").write_text(text, encoding="utf-8")


def _header(file: IO[bytes]) -> tuple[dict[str, Any], dict[str, tuple[list[int], int, int]]]:
    """The metadata, and shape, type and offset of each tensor. Leaves the file at the end of the header."""
    magic, _version, tensors, entries = _read(file, "<4sIQQ")
    if magic != b"GGUF":
        raise ValueError(f"the file begins with {magic!r}, expected GGUF")
    facts = {}
    for _ in range(entries):
        name = _text(file)
        facts[name] = _value(file, *_read(file, "<I"))
    infos = {}
    for _ in range(tensors):
        name = _text(file)
        (dimensions,) = _read(file, "<I")
        # The first number is the length of a row.
        shape = list(reversed(_read(file, f"<{dimensions}Q")))
        infos[name] = (shape, *_read(file, "<IQ"))
    return facts, infos


def _read(file: IO[bytes], layout: str) -> tuple[Any, ...]:
    return struct.unpack(layout, file.read(struct.calcsize(layout)))


def _text(file: IO[bytes]) -> str:
    return file.read(*_read(file, "<Q")).decode()


def _value(file: IO[bytes], kind: int) -> Any:
    if kind == _TEXT:
        return _text(file)
    if kind == _ARRAY:
        each, count = _read(file, "<IQ")
        return [_value(file, each) for _ in range(count)]
    return _read(file, _NUMBERS[kind])[0]


def _tensor(file: IO[bytes], shape: list[int], kind: int) -> Any:
    """The numbers in fp32."""
    layout = _BLOCKS[kind]
    count = math.prod(shape) // (1 if kind == _F32 else _BLOCK)
    blocks = np.frombuffer(file.read(count * layout.itemsize), layout)
    if kind == _F32:
        return blocks["number"].reshape(shape)
    if kind == _Q8_0:
        numbers = blocks["number"].astype(np.float32)
    else:  # the first half of a block is in the low bits, the second half in the high bits
        pairs = blocks["pairs"]
        numbers = np.concatenate([pairs & 15, pairs >> 4], axis=1).astype(np.float32)
    numbers *= blocks["scale"].astype(np.float32)[:, None]
    if kind == _Q4_1:
        numbers += blocks["least"].astype(np.float32)[:, None]
    return numbers.reshape(shape)


def _halves(tensor: Any, heads: int) -> Any:
    """The rows of a head in transformers' order for rotary embeddings: both halves, instead of pairs."""
    rows, columns = tensor.shape
    pairs = tensor.reshape(heads, rows // heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)


def _save(weights: dict[str, Any], path: Path) -> None:
    """Write a safetensors file: the length of its header, the header, the tensors."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in weights.items():
        begin, end = end, end + tensor.nbytes
        header[name] = {"dtype": "F16", "shape": tensor.shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in weights.values():
            file.write(np.ascontiguousarray(tensor).data)


def _config(facts: dict[str, Any]) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(facts["tokenizer.ggml.tokens"]),
        "hidden_size": facts["llama.embedding_length"],
        "intermediate_size": facts["llama.feed_forward_length"],
        "num_hidden_layers": facts["llama.block_count"],
        "num_attention_heads": facts["llama.attention.head_count"],
        "num_key_value_heads": facts["llama.attention.head_count_kv"],
        "max_position_embeddings": facts["llama.context_length"],
        "rms_norm_eps": round(facts["llama.attention.layer_norm_rms_epsilon"], 12),
        "rope_theta": facts["llama.rope.freq_base"],
        "tie_word_embeddings": True,
        "bos_token_id": facts["tokenizer.ggml.bos_token_id"],
        "eos_token_id": facts["tokenizer.ggml.eos_token_id"],
        "pad_token_id": facts["tokenizer.ggml.padding_token_id"],
        "torch_dtype": "float16",
    }


def _tokenizer(facts: dict[str, Any]) -> dict[str, Any]:
    """The content of tokenizer.json: byte-level BPE that splits numbers into digits."""
    tokens, kinds = facts["tokenizer.ggml.tokens"], facts["tokenizer.ggml.token_type"]
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    bytes_ = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "added_tokens": [
            {"id": number, "content": tokens[number], **plain, "special": True}
            for number, kind in enumerate(kinds)
            if kind == _CONTROL
        ],
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, bytes_],
        },
        "decoder": bytes_,
        "model": {
            "type": "BPE",
            "vocab": {token: number for number, token in enumerate(tokens)},
            "merges": facts["tokenizer.ggml.merges"],
        },
    }


def _tokenizer_config(facts: dict[str, Any]) -> dict[str, Any]:
    tokens = facts["tokenizer.ggml.tokens"]
    names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{name: tokens[facts[f"tokenizer.ggml.{short}_token_id"]] for name, short in names.items()},
        "chat_template": facts["tokenizer.chat_template"],
        "model_max_length": facts["llama.context_length"],
        "clean_up_tokenization_spaces": False,
    }
