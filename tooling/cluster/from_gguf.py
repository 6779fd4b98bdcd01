"""Convert a Llama model from a GGUF file, as llama.cpp's tools write it, to a model folder of transformers.

The file has everything: the configuration, the tokenizer with its chat template, and the weights, of which most
are quantized. The folder's weights are in fp16.
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md describes the format.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, dequantize
from safetensors.numpy import save_file

# The tensors outside the layers, and those of layer N, whose names begin with blk.N.
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
_CONTROL = 3  # the type of special tokens


def convert(file: Path, folder: Path) -> None:
    """Write the model in `file` to the folder."""
    reader = GGUFReader(file)
    facts = {name: field.contents() for name, field in reader.fields.items()}
    heads = {"attn_q": facts["llama.attention.head_count"], "attn_k": facts["llama.attention.head_count_kv"]}
    weights = {}
    for tensor in reader.tensors:
        *layer, short, _ = tensor.name.split(".")
        values = dequantize(tensor.data, tensor.tensor_type)
        if short in heads:
            values = _halves(values, heads[short])
        name = f"model.layers.{layer[1]}.{_LAYER[short]}" if layer else _OUTER[short]
        weights[f"{name}.weight"] = np.ascontiguousarray(values, "<f2")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    for part, document in (
        ("config", _config(facts)),
        ("tokenizer", _tokenizer(facts)),
        ("tokenizer_config", _tokenizer_config(facts)),
    ):
        text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
        (folder / f"{part}.json").write_text(text, encoding="utf-8")


def _halves(tensor: Any, heads: int) -> Any:
    """The rows of a head in transformers' order for rotary embeddings: both halves, instead of pairs."""
    rows, columns = tensor.shape
    pairs = tensor.reshape(heads, rows // heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)


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
