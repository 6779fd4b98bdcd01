"""Checks in the image: the tokens of tagged words and of questions, with byte-level tokenizers."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, RobertaTokenizerFast

from cpu_train_stack.train.data.classification_rows import Question, Questions
from cpu_train_stack.train.data.language_rows import TaggedWords
from cpu_train_stack.train.data.token_files import TokenFolder
from cpu_train_stack.train.data.types import Rows, TrainerInputs
from cpu_train_stack.train.model.pretrained import Loaded
from cpu_train_stack.train.tasks import registry
from cpu_train_stack.train.tasks.answering import AnsweringArguments

WORDS = ("Ġtom", "Ġparis", "Ġlives", "Ġin", "Ġwhere", "tom", "paris", "lives", "in", "where")
# Each word grows from its first letter.
MERGES = list(dict.fromkeys((word[:end], word[end]) for word in WORDS for end in range(1, len(word))))
SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
PIECES = dict.fromkeys([*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet()), *map("".join, MERGES)])
VOCABULARY = {piece: number for number, piece in enumerate(PIECES)}
SENTENCE = ["tom", "lives", "in", "paris"]


def encoder() -> Any:
    return RobertaTokenizerFast(vocab=VOCABULARY, merges=MERGES)


def decoder() -> Any:
    """As Qwen's: no special tokens around a text, and padding on the left."""
    inner = Tokenizer(models.BPE(VOCABULARY, MERGES))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    options = {"pad_token": "<pad>", "padding_side": "left"}
    return PreTrainedTokenizerFast(tokenizer_object=inner, **options)


def inputs(tokenizer: Any, task: str, data: Any, labels: list[str] | None = None) -> TrainerInputs:
    no_model: Any = None
    with tempfile.TemporaryDirectory() as folder:
        return registry.make_inputs(
            AnsweringArguments(model_name_or_path="x", doc_stride=2, max_seq_length=32),
            Rows(registry.TASKS[task], data, None, labels, ()),
            Loaded(no_model, tokenizer, None, ()),
            TokenFolder(Path(folder)),
        )


def check_words(tokenizer: Any) -> None:
    """A word has the token that it has inside a text, and one label."""
    data = TaggedWords("x", [SENTENCE, ["in"]], [["P", "O", "O", "L"], ["O"]])
    row = inputs(tokenizer, "token-classification", data, ["L", "O", "P"]).train[0]
    kept = [pair for pair in zip(row["input_ids"].tolist(), row["labels"].tolist(), strict=True) if pair[1] >= 0]
    expected = [(VOCABULARY[f"Ġ{word}"], label) for word, label in zip(SENTENCE, (2, 1, 1, 0), strict=True)]
    assert kept == expected, kept


def check_answers(tokenizer: Any) -> None:
    """In a batch with padding, the labels are the places of the answer; the question comes first."""
    contexts = ("tom lives in paris", "tom lives in paris in paris in paris")
    items = [Question(text, "where lives tom", text, ("paris",), (text.index("paris"),)) for text in contexts]
    made = inputs(tokenizer, "question-answering", Questions("x", items))
    batch = made.collate([made.train[0], made.train[1]])
    assert batch["attention_mask"].min() == 0
    names = ("input_ids", "start_positions", "end_positions")
    for tokens, start, end in zip(*(batch[name] for name in names), strict=True):
        assert tokens[start : end + 1].tolist() == [VOCABULARY["Ġparis"]], (tokens, start, end)
        assert VOCABULARY["where"] in tokens[:2]


def main() -> None:
    for tokenizer in (encoder(), decoder()):
        check_words(tokenizer)
        side = tokenizer.padding_side
        check_answers(tokenizer)
        assert tokenizer.padding_side == side  # it is saved with the model


main()
