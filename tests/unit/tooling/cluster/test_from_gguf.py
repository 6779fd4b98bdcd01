"""A GGUF file, written here, becomes a model folder. docs: github.com/ggml-org/ggml, docs/gguf.md."""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tooling.cluster import from_gguf

TOKENS = ["<|endoftext|>", "<|im_start|>", "a", "b", "ab"]
FACTS: dict[str, tuple[int, Any]] = {
    "llama.embedding_length": (4, 32),
    "llama.feed_forward_length": (4, 64),
    "llama.block_count": (4, 1),
    "llama.context_length": (4, 128),
    "llama.attention.head_count": (4, 2),
    "llama.attention.head_count_kv": (4, 1),
    "llama.attention.layer_norm_rms_epsilon": (6, 1e-5),
    "llama.rope.freq_base": (6, 1e4),
    "tokenizer.ggml.tokens": (8, TOKENS),
    "tokenizer.ggml.token_type": (5, [3, 3, 1, 1, 1]),
    "tokenizer.ggml.merges": (8, ["a b"]),
    "tokenizer.ggml.bos_token_id": (4, 1),
    "tokenizer.ggml.eos_token_id": (4, 0),
    "tokenizer.ggml.unknown_token_id": (4, 0),
    "tokenizer.ggml.padding_token_id": (4, 0),
    "tokenizer.chat_template": (8, "{{ messages }}"),
}


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def value(kind: int, content: Any) -> bytes:
    if isinstance(content, list):
        return struct.pack("<IQ", kind, len(content)) + b"".join(value(kind, each) for each in content)
    return text(content) if kind == 8 else struct.pack({4: "<I", 5: "<i", 6: "<f"}[kind], content)


def write(folder: Path, tensors: dict[str, tuple[int, tuple[int, ...], bytes]]) -> Path:
    """Writes a file with the tensors: type, shape and bytes of each."""
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(FACTS))
    for name, (kind, content) in FACTS.items():
        head += text(name) + struct.pack("<I", 9 if isinstance(content, list) else kind) + value(kind, content)
    data = b""
    for name, (kind, shape, packed) in tensors.items():
        head += text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *reversed(shape))
        head += struct.pack("<IQ", kind, len(data))
        data += packed + b"\0" * (-len(packed) % 32)
    path = folder / "model.gguf"
    path.write_bytes(head + b"\0" * (-len(head) % 32) + data)
    return path


def read(path: Path) -> dict[str, Any]:
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    assert header.pop("__metadata__") == {"format": "pt"}
    tensors = {}
    for name, entry in header.items():
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        tensors[name] = np.frombuffer(content[begin:end], "<f2").reshape(entry["shape"])
    return tensors


def test_each_type_of_tensor_is_unpacked(tmp_path: Path) -> None:
    norm = np.arange(32, dtype="<f4") / 4
    eight = struct.pack("<e32b", 0.5, *range(-16, 16)) * 5
    four = struct.pack("<ee16B", 0.25, -1.0, *(low | (15 - low) << 4 for low in range(16)))
    from_gguf.convert(
        write(
            tmp_path,
            {
                "token_embd.weight": (8, (5, 32), eight),
                "output_norm.weight": (0, (32,), norm.tobytes()),
                "blk.0.ffn_down.weight": (3, (1, 32), four),
            },
        ),
        tmp_path,
    )
    tensors = read(tmp_path / "model.safetensors")
    assert tensors.keys() == {
        "model.embed_tokens.weight",
        "model.norm.weight",
        "model.layers.0.mlp.down_proj.weight",
    }
    assert tensors["model.norm.weight"].tolist() == norm.tolist()
    assert tensors["model.embed_tokens.weight"].tolist() == [[number / 2 for number in range(-16, 16)]] * 5
    quarters = [low / 4 - 1 for low in range(16)]
    assert tensors["model.layers.0.mlp.down_proj.weight"].tolist() == [[*quarters, *reversed(quarters)]]


def test_queries_and_keys_are_in_the_order_of_transformers(tmp_path: Path) -> None:
    """Two heads of queries and one of keys, of four rows each: pairs become halves."""
    queries: Any = np.repeat(np.arange(8, dtype="<f4"), 32)
    keys: Any = np.repeat(np.arange(4, dtype="<f4"), 32)
    from_gguf.convert(
        write(
            tmp_path,
            {
                "blk.3.attn_q.weight": (0, (8, 32), queries.tobytes()),
                "blk.3.attn_k.weight": (0, (4, 32), keys.tobytes()),
            },
        ),
        tmp_path,
    )
    tensors = read(tmp_path / "model.safetensors")
    assert tensors["model.layers.3.self_attn.q_proj.weight"][:, 0].tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
    assert tensors["model.layers.3.self_attn.k_proj.weight"][:, 0].tolist() == [0, 2, 1, 3]


def test_the_folder_has_the_configuration_and_the_tokenizer(tmp_path: Path) -> None:
    from_gguf.convert(write(tmp_path, {}), tmp_path)
    config, tokenizer, settings = (
        json.loads((tmp_path / f"{name}.json").read_text()) for name in ("config", "tokenizer", "tokenizer_config")
    )
    assert (config["vocab_size"], config["num_key_value_heads"], config["rms_norm_eps"]) == (5, 1, 1e-5)
    assert tokenizer["model"]["vocab"] == {token: number for number, token in enumerate(TOKENS)}
    assert [entry["content"] for entry in tokenizer["added_tokens"]] == TOKENS[:2]
    assert (settings["bos_token"], settings["eos_token"]) == ("<|im_start|>", "<|endoftext|>")
    assert settings["chat_template"] == "{{ messages }}"


def test_another_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"PK\3\4" + bytes(20))
    with pytest.raises(ValueError, match="GGUF magic invalid"):
        from_gguf.convert(path, tmp_path)
