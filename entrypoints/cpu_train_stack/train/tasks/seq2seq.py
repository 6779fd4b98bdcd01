"""Sequence to sequence: an encoder-decoder model writes a target for each source, such as a summary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Callable, Optional

import numpy
import torch

from cpu_train_stack.cli.errors import UsageError, one_line
from cpu_train_stack.train.data import pair_rows
from cpu_train_stack.train.data.language_rows import Documents
from cpu_train_stack.train.data.splits import Splits
from cpu_train_stack.train.data.tables import batches, parse_text_columns
from cpu_train_stack.train.data.token_files import TokenFile, TokenFolder
from cpu_train_stack.train.data.token_rows import TokenRows
from cpu_train_stack.train.data.types import Rows, TrainerInputs, of_both
from cpu_train_stack.train.flags.arguments import Task, TaskArguments
from cpu_train_stack.train.flags.flag import COUNT, FlagRange, flag
from cpu_train_stack.train.model.pretrained import Loaded
from cpu_train_stack.train.scores import texts
from cpu_train_stack.train.tasks.sequences import Padder, TokenizedRows, check_positions, sequence_length
from cpu_train_stack.train.tasks.tokens import IGNORED, Perplexity, RowSums, TokenLoss, check_evaluated


@dataclass
class PairArguments(TaskArguments):
    source_prefix: str = flag("text2text-generation: text before each source, such as 'summarize: ' for T5.", "")
    max_target_length: int = flag("text2text-generation: longest target in tokens.", 128, takes=COUNT)
    predict_with_generate: bool = flag(
        "text2text-generation: evaluate what the model writes.", False, needs="do_eval", whole=True
    )
    generation_max_length: Optional[int] = flag(
        "Longest generated text in tokens. Default: max_target_length.", takes=COUNT, needs="predict_with_generate"
    )
    num_beams: Optional[int] = flag(
        "Number of beams in the search for a text. Default: the model's own number.",
        takes=FlagRange(1, 65536),
        needs="predict_with_generate",
    )


TASK = Task(
    name="text2text-generation",
    order=4,
    auto_class="AutoModelForSeq2SeqLM",
    peft_type="SEQ_2_SEQ_LM",
    length=1024,
    flags="text_column_names label_smoothing_factor",
    arguments=PairArguments,
    columns="source and target",
    fits=lambda table, _label: pair_rows.has_pairs(table),
)


class Pairs(TokenizedRows):
    """Sources and targets. A row: input_ids int32 [source's tokens], labels int32 [target's tokens]."""

    def __init__(
        self, rows: Iterable[tuple[list[int], list[int]]], counts: Counter[str], shared: TokenFile | None = None
    ) -> None:
        # Below zero, a number is a target's token: -1 is token 0.
        joined = ([source + [~token for token in target]] for source, target in rows)
        self._rows = TokenRows(joined, 1, counts, shared)

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = self._rows[index][0]
        return {"input_ids": row[row >= 0], "labels": ~row[row < 0]}


@dataclass(frozen=True)
class PairPadder:
    """Pads sources and targets. `shift`: the model's function that makes the decoder's input of labels."""

    sources: Padder
    targets: Padder
    shift: Callable[[torch.Tensor], torch.Tensor]

    def __call__(self, rows: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
        batch = self.sources([{"input_ids": row["input_ids"]} for row in rows])
        labels = self.targets([{"input_ids": row["labels"]} for row in rows])["input_ids"]
        return {**batch, "labels": labels, "decoder_input_ids": self.shift(labels)}


@dataclass(frozen=True)
class AnswerWriter:
    """Generates a text for each source. `beams`: None for the model's own number."""

    length: int
    beams: int | None

    def __call__(self, model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """The tokens after the decoder's first one: int64 [rows, tokens]."""
        options = {} if self.beams is None else {"num_beams": self.beams}
        tokens: torch.Tensor = model.generate(
            input_ids=batch["input_ids"],
            attention_mask=batch["attention_mask"],
            max_new_tokens=self.length,
            do_sample=False,
            **options,
        )
        return tokens[:, 1:]


class SumsAndTexts:
    """Trainer's preprocess_logits_for_metrics: the sums of RowSums, and the generated tokens as they are."""

    def __call__(self, predictions: Any, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scores, written = predictions
        return RowSums(shift=False)(scores, labels), written


class TextScores:
    """Trainer's compute_metrics. Predictions: sums and tokens of SumsAndTexts, in the order of `data`.

    The targets are complete, as the tokenizer writes them: some tokenizers change letters or white space.
    """

    def __init__(self, data: Documents, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._expected = self._texts(tokenizer(text_target=[target for _, target in data.items])["input_ids"])

    def __call__(self, evaluated: Any) -> dict[str, float]:
        (sums, written), pad, rows = evaluated.predictions, self._tokenizer.pad_token_id, len(self._expected)
        check_evaluated(rows, written)
        written = numpy.where(written == IGNORED, pad, written)
        return {
            **Perplexity(rows).of(sums),
            **texts.scores(self._texts(written), self._expected),
            "gen_len": float((written != pad).sum() / rows),
        }

    def _texts(self, tokens: Any) -> list[str]:
        return [text.strip() for text in self._tokenizer.batch_decode(tokens, skip_special_tokens=True)]


def read_rows(arguments: TaskArguments, splits: Splits) -> Rows:
    """The rows for training and evaluation. Raises UsageError that names the first bad row."""
    names = parse_text_columns(arguments.text_column_names)
    train, validation = of_both(splits, lambda table: pair_rows.pairs(table, names))
    return Rows(TASK, train, validation, None, ())


def make_inputs(arguments: PairArguments, rows: Rows, loaded: Loaded, folder: TokenFolder) -> TrainerInputs:
    """Tokenize all rows. Raises UsageError for a model that cannot be trained on them."""
    model, tokenizer = loaded.model, loaded.tokenizer
    _check_model(model, tokenizer)
    # A tokenizer's own limit is not the model's: T5 has no limit, but its tokenizer has 512.
    limit = None if getattr(model.config, "max_position_embeddings", None) is None else loaded.limit
    length = sequence_length(arguments, TASK, limit)
    for name in ("max_target_length", "generation_max_length"):
        check_positions(name, getattr(arguments, name), limit)
    notes: list[str] = []
    train, validation = of_both(rows, lambda data: _pairs(data, tokenizer, arguments, length, folder, notes))
    writes = arguments.predict_with_generate and validation is not None
    missing = texts.missing() if writes else None
    to_length = arguments.pad_to_max_length
    return TrainerInputs(
        train=train,
        validation=validation,
        collate=PairPadder(
            Padder(tokenizer.pad_token_id, length, to_length),
            Padder(IGNORED, arguments.max_target_length, to_length),
            model.prepare_decoder_input_ids_from_labels,
        ),
        compute_metrics=None if validation is None else _metrics(rows.validation, tokenizer, writes),
        metric=texts.headline() if writes else "perplexity",
        max_seq_length=length,
        loss=TokenLoss(shift=False),
        reduce_logits=SumsAndTexts() if writes else RowSums(shift=False),
        write=AnswerWriter(arguments.generation_max_length or arguments.max_target_length, arguments.num_beams)
        if writes
        else None,
        notes=(*notes, *([missing] if missing else [])),
    )


def _metrics(data: Documents, tokenizer: Any, writes: bool) -> Callable[[Any], dict[str, float]]:
    return TextScores(data, tokenizer) if writes else Perplexity(len(data))


def _check_model(model: Any, tokenizer: Any) -> None:
    if hasattr(tokenizer, "tgt_lang"):
        raise UsageError(
            f"a {type(tokenizer).__name__} needs the languages of source and target, which train does not set: "
            "use run_translation.py of transformers with `run`"
        )
    try:
        model.prepare_decoder_input_ids_from_labels(torch.zeros(1, 1, dtype=torch.long))
    except (AttributeError, TypeError, ValueError) as error:
        raise UsageError(f"a {type(model).__name__} cannot be trained on pairs: {one_line(error)}") from error


def _pairs(
    data: Documents,
    tokenizer: Any,
    arguments: PairArguments,
    length: int,
    folder: TokenFolder,
    notes: list[str],
) -> Pairs:
    """The rows as tokens, sources cut at `length` and targets at --max_target_length. Adds to `notes`."""
    most, cut = arguments.max_target_length, Counter[str]()
    limits = {"sources": f"--max_seq_length {length}", "targets": f"--max_target_length {most}"}

    def encoded() -> Iterator[tuple[list[int], list[int]]]:
        for rows in batches(data.items):
            sources = tokenizer(
                [arguments.source_prefix + source for source, _ in rows], truncation=True, max_length=length
            )
            targets = tokenizer(text_target=[target for _, target in rows], truncation=True, max_length=most)
            for what, found in zip(limits, (sources, targets)):
                cut[what] += sum(bool(one.overflowing) for one in found.encodings)
            yield from zip(sources["input_ids"], targets["input_ids"])

    settings = (TASK.name, length, most, arguments.source_prefix)
    pairs = Pairs(encoded(), cut, folder.file(tokenizer, data.digest, *settings))
    notes += [
        f"{data.source}: {cut[what]} of {len(data)} {what} are truncated to {limit}"
        for what, limit in limits.items()
        if cut[what]
    ]
    return pairs
