"""Token classification: one tag per word, at the word's first token."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from cpu_train_stack.train.data import language_rows
from cpu_train_stack.train.data.language_rows import TaggedWords
from cpu_train_stack.train.data.splits import Splits
from cpu_train_stack.train.data.token_files import TokenFolder
from cpu_train_stack.train.data.token_rows import TokenRows
from cpu_train_stack.train.data.types import Rows, TrainerInputs, of_both
from cpu_train_stack.train.flags.arguments import Task, TaskArguments
from cpu_train_stack.train.model.pretrained import Loaded
from cpu_train_stack.train.scores import entities
from cpu_train_stack.train.tasks.classification import choose_labels
from cpu_train_stack.train.tasks.sequences import Example, Padder, Sequences, sequence_length
from cpu_train_stack.train.tasks.tokens import IGNORED, RowSums, TokenLoss, check_evaluated, means

TASK = Task(
    name="token-classification",
    order=3,
    auto_class="AutoModelForTokenClassification",
    peft_type="TOKEN_CLS",
    length=128,
    flags="label_column_name label_smoothing_factor",
    arguments=TaskArguments,
    columns="tokens and ner_tags",
    fits=lambda table, label: language_rows.tag_column(table, label) is not None,
)


class Tags:
    """Trainer's preprocess_logits_for_metrics.

    Input: logits, float [batch, tokens, tags], and labels, int64 [batch, tokens]. Output: the chosen tag of each
    token, int64 [batch, tokens], and the sums of RowSums.
    """

    def __init__(self) -> None:
        self._sums = RowSums(shift=False)

    def __call__(self, logits: Any, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scores = logits[0] if isinstance(logits, tuple) else logits
        return scores.argmax(-1), self._sums(scores, labels)


class EntityScores:
    """Trainer's compute_metrics: over words, and over entities if the tags are names of entities."""

    def __init__(self, rows: int, names: Sequence[str]) -> None:
        self._rows = rows
        self._names = names
        self.metric = "f1" if entities.are_entities(names) else "accuracy"

    def __call__(self, evaluated: Any) -> dict[str, float]:
        chosen, sums = evaluated.predictions
        labels = evaluated.label_ids
        check_evaluated(self._rows, chosen, labels)
        predicted = [self._words(row, of) for row, of in zip(chosen, labels)]
        expected = [self._words(row, row) for row in labels]
        loss, accuracy = means(sums)
        found = {"loss": loss, "accuracy": accuracy, "samples": float(len(chosen))}
        return {**found, **(entities.scores(predicted, expected) if self.metric == "f1" else {})}

    def _words(self, row: Any, labels: Any) -> list[str]:
        return [self._names[int(tag)] for tag, label in zip(row, labels) if label != IGNORED]


def read_rows(arguments: TaskArguments, splits: Splits) -> Rows:
    """The rows for training and evaluation. Raises UsageError that names the first bad row."""
    column = arguments.label_column_name
    train, validation = of_both(splits, lambda table: language_rows.tagged_words(table, column))
    labels = choose_labels(arguments, train, validation)
    notes = [
        f"{split.source}: {split.empty} of {split.empty + len(split)} rows are left out: no words"
        for split in (train, validation)
        if split is not None and split.empty
    ]
    note = f"token-classification: {len(labels)} tags"
    return Rows(TASK, train, validation, labels, (note, *notes))


def make_inputs(arguments: TaskArguments, rows: Rows, loaded: Loaded, folder: TokenFolder) -> TrainerInputs:
    """Tokenize all rows. Raises UsageError if max_seq_length is too long for the model."""
    length = sequence_length(arguments, TASK, loaded.limit)
    names = rows.labels or []
    notes: list[str] = []
    train, validation = of_both(
        rows, lambda data: Sequences(_rows(data, names, loaded.tokenizer, length, folder, notes))
    )
    scores = EntityScores(len(validation or ()), names)
    return TrainerInputs(
        train=train,
        validation=validation,
        collate=Padder(loaded.tokenizer.pad_token_id, length, arguments.pad_to_max_length),
        compute_metrics=None if validation is None else scores,
        metric=scores.metric,
        max_seq_length=length,
        loss=TokenLoss(shift=False),
        reduce_logits=Tags(),
        notes=tuple(notes),
    )


def _rows(
    data: TaggedWords, names: Sequence[str], tokenizer: Any, length: int, folder: TokenFolder, notes: list[str]
) -> TokenRows:
    """The rows as tokens, cut at `length`. Adds to `notes`."""
    counts: Counter[str] = Counter()
    file = folder.file(tokenizer, data.digest, TASK.name, length, names)
    found = TokenRows(_examples(data, names, tokenizer, length, counts), 2, counts, file)
    if counts["cut"]:
        notes.append(
            f"{data.source}: {counts['cut']} of {len(data)} rows are truncated to {length} tokens: later words "
            "are ignored"
        )
    return found


def _examples(
    data: TaggedWords, names: Sequence[str], tokenizer: Any, length: int, counts: Counter[str]
) -> Iterator[Example]:
    """The rows with a label for each token. Counts rows that are cut."""
    numbers = {name: number for number, name in enumerate(names)}
    tokenizer = _accepting_words(tokenizer)
    spaced = _needs_spaces(tokenizer)
    for words, tags in zip(data.words, data.tags):
        texts = [f" {word}" if word else word for word in words] if spaced else words
        encoded = tokenizer(texts, is_split_into_words=True, truncation=True, max_length=length)
        owners = encoded.word_ids()
        labels = [
            IGNORED if owner is None or owner == before else numbers[tags[owner]]
            for before, owner in zip([None, *owners], owners)
        ]
        last = max((owner for owner in owners if owner is not None), default=-1)
        counts["cut"] += bool(words) and last < len(words) - 1
        yield encoded["input_ids"], labels


def _accepting_words(tokenizer: Any) -> Any:
    """transformers 4 refuses to tokenize words with RoBERTa's tokenizers, unless they say that they add spaces."""
    accepting = copy.copy(tokenizer)
    accepting.add_prefix_space = True
    return accepting


def _needs_spaces(tokenizer: Any) -> bool:
    """Whether a word has its tokens inside a text only after a space, as with byte-level tokenizers."""

    def ids(text: Any, is_split: bool) -> Any:
        return tokenizer(text, is_split_into_words=is_split, add_special_tokens=False)["input_ids"]

    inside = ids("a a", False)
    return bool(ids(["a", "a"], True) != inside == ids(["a", " a"], True))
