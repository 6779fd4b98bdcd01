"""Masked language modelling: an encoder predicts masked tokens."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.train.data.language_rows import Documents, Kind
from cpu_train_stack.train.data.splits import Splits
from cpu_train_stack.train.data.tables import batches
from cpu_train_stack.train.data.token_files import TokenFolder
from cpu_train_stack.train.data.token_rows import TokenRows
from cpu_train_stack.train.data.types import Rows, TrainerInputs
from cpu_train_stack.train.flags.arguments import Task, TaskArguments
from cpu_train_stack.train.flags.flag import FlagRange, flag
from cpu_train_stack.train.model.pretrained import Loaded
from cpu_train_stack.train.tasks import generation
from cpu_train_stack.train.tasks.sequences import Padder, TokenizedRows, sequence_length
from cpu_train_stack.train.tasks.tokens import IGNORED, Perplexity, RowSums, TokenLoss


@dataclass
class MaskingArguments(TaskArguments):
    mlm_probability: float = flag(
        "fill-mask: share of the tokens that the model has to predict.", 0.15, takes=FlagRange(0, 1, "()")
    )


TASK = Task(
    name="fill-mask",
    order=6,
    auto_class="AutoModelForMaskedLM",
    peft_type=None,
    length=512,
    flags="text_column_names label_smoothing_factor",
    arguments=MaskingArguments,
    takes_text=True,
)


@dataclass(frozen=True)
class Masker:
    """BERT's rule: of the chosen tokens, 80% become the mask, 10% a random token, and 10% stay.

    `vocabulary`: its size. `special`: tokens that are never chosen. `share`: of the tokens, how many are chosen.
    """

    mask: int
    vocabulary: int
    special: frozenset[int]
    share: float

    def __call__(self, ids: Sequence[int], generator: torch.Generator | None = None) -> dict[str, torch.Tensor]:
        """The masked tokens and the labels: int64 tensors [tokens].

        Without `generator`, torch's default one is used.
        """
        tokens = torch.as_tensor(ids, dtype=torch.long)
        ordinary = torch.tensor([token not in self.special for token in tokens.tolist()])
        chosen = ordinary & (torch.rand(len(tokens), generator=generator) < self.share)
        fate = torch.rand(len(tokens), generator=generator)
        other = torch.randint(self.vocabulary, (len(tokens),), generator=generator)
        seen = torch.where(chosen & (fate < 0.8), torch.tensor(self.mask), tokens)
        seen = torch.where(chosen & (fate >= 0.8) & (fate < 0.9), other, seen)
        return {"input_ids": seen, "labels": torch.where(chosen, tokens, torch.tensor(IGNORED))}


class MaskedTexts(TokenizedRows):
    """Rows of tokens, masked on access. `fixed`: mask the same tokens in every evaluation and on every rank.

    For training, the masks of a row depend on the seed and the epoch. They do not depend on the rank or on the
    rows read before, so a resumed run has the masks of the uninterrupted run.
    Until `begin_epoch`, they are random.
    """

    def __init__(self, rows: TokenRows, mask_tokens: Masker, fixed: bool) -> None:
        self._rows = rows
        self._mask_tokens = mask_tokens
        self._fixed = fixed
        self._epoch = ""

    def begin_epoch(self, seed: int, epoch: int) -> None:
        self._epoch = f"{seed} {epoch}"

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return self._mask_tokens(self._rows[index][0], self._generator(index))

    def _generator(self, index: int) -> torch.Generator | None:
        if self._fixed:
            return torch.Generator().manual_seed(index)
        if not self._epoch:
            return None
        digest = hashlib.sha256(f"{self._epoch} {index}".encode()).digest()
        return torch.Generator().manual_seed(int.from_bytes(digest[:4], "big"))  # all bits that torch uses


def read_rows(arguments: TaskArguments, splits: Splits) -> Rows:
    """The texts for training and evaluation. Raises UsageError for other kinds of rows."""
    rows = generation.documents(arguments, splits, TASK)
    kind = (rows.train or rows.validation).kind
    if kind is not Kind.TEXT:
        raise UsageError(f"found {kind.value}, expected texts for fill-mask: pass --text_column_names")
    return rows


def make_inputs(arguments: MaskingArguments, rows: Rows, loaded: Loaded, folder: TokenFolder) -> TrainerInputs:
    """Tokenize all rows. Raises UsageError for a tokenizer without a mask token."""
    tokenizer = loaded.tokenizer
    if tokenizer.mask_token_id is None:
        raise UsageError(
            "the tokenizer has no mask token, expected the tokenizer of an encoder: use --task text-generation "
            "for decoders"
        )
    length = sequence_length(arguments, TASK, loaded.limit)
    special = frozenset(tokenizer.all_special_ids)
    mask_tokens = Masker(tokenizer.mask_token_id, len(tokenizer), special, arguments.mlm_probability)

    def texts(split: Documents | None, fixed: bool) -> MaskedTexts | None:
        if split is None:
            return None
        file = folder.file(tokenizer, split.digest, TASK.name, length)
        return MaskedTexts(TokenRows(_pieces(split, tokenizer, length), 1, shared=file), mask_tokens, fixed)

    train, validation = texts(rows.train, fixed=False), texts(rows.validation, fixed=True)
    return TrainerInputs(
        train=train,
        validation=validation,
        collate=Padder(tokenizer.pad_token_id, length, arguments.pad_to_max_length),
        compute_metrics=None if validation is None else Perplexity(len(validation)),
        metric="perplexity",
        max_seq_length=length,
        loss=TokenLoss(shift=False),
        reduce_logits=RowSums(shift=False),
    )


def _pieces(data: Documents, tokenizer: Any, length: int) -> Iterator[tuple[list[int]]]:
    """Pieces of at most `length` tokens, each with the special tokens around it."""
    for texts in batches(data.items):
        encoded = tokenizer(texts, truncation=True, max_length=length, return_overflowing_tokens=True)
        for ids in encoded["input_ids"]:
            yield (ids,)
