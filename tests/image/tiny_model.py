"""Runs inside the image: saves random models of two layers and their tokenizers.

Usage: tiny_model.py FOLDER TEXT [DECODER_FOLDER [T5_FOLDER]]: a BERT, a Llama with a chat template, and a T5 with
the tokens of the Llama. Without dropout, so that runs can be compared.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    BertConfig,
    BertModel,
    BertTokenizerFast,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)

TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def save(folder: Path, text: str) -> None:
    """The vocabulary is the words of `text` and all letters, so that no input is only unknown words."""
    words = sorted(set(text.lower().split()))
    letters = [chr(code) for code in range(33, 127)]
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces = dict.fromkeys([*special, *words, *letters, *(f"##{letter}" for letter in letters)])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(pieces))
    tokenizer = BertTokenizerFast(vocab=str(folder / "vocab.txt"), model_max_length=64)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(pieces),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
        initializer_range=0.2,  # wide enough for one step to show in the loss
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    BertModel(config).save_pretrained(folder)
    share(folder)


def save_decoder(folder: Path, text: str) -> None:
    """A byte-level vocabulary that is trained on `text` on the spot; no padding token, as Llama's has none."""
    special = ["<|begin|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([text], trainer)
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=special[0],
        eos_token=special[1],
        additional_special_tokens=special[2:],
        model_max_length=128,
    )
    wrapped.chat_template = TEMPLATE
    wrapped.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(wrapped),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=64,
        max_position_embeddings=128,
        initializer_range=0.2,
        bos_token_id=wrapped.bos_token_id,
        eos_token_id=wrapped.eos_token_id,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    share(folder)


def save_pairs(folder: Path, decoder: Path) -> None:
    """A T5 with the tokenizer of `decoder`, which ends each text with a token here."""
    inner = Tokenizer.from_file(str(decoder / "tokenizer.json"))
    end = inner.token_to_id("<|end|>")
    inner.post_processor = processors.TemplateProcessing(single="$A <|end|>", special_tokens=[("<|end|>", end)])
    special = {"pad_token": "<|begin|>", "eos_token": "<|end|>"}
    wrapped = PreTrainedTokenizerFast(tokenizer_object=inner, **special)
    wrapped.save_pretrained(folder)
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=len(wrapped),
        d_model=32,
        d_kv=16,
        d_ff=64,
        num_layers=2,
        num_heads=2,
        dropout_rate=0.0,
        pad_token_id=wrapped.pad_token_id,
        eos_token_id=end,
        decoder_start_token_id=wrapped.pad_token_id,
    )
    model = T5ForConditionalGeneration(config)
    model.generation_config.num_beams = 2
    model.save_pretrained(folder)
    share(folder)


def share(folder: Path) -> None:
    for path in folder.iterdir():
        path.chmod(0o644)  # weights are saved for their owner alone, who is not the tests' user


if __name__ == "__main__":
    save(Path(sys.argv[1]), sys.argv[2])
    for decoder in sys.argv[3:4]:
        save_decoder(Path(decoder), sys.argv[2])
    for pairs in sys.argv[4:]:
        save_pairs(Path(pairs), Path(sys.argv[3]))
