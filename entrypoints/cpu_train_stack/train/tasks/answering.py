"""Extractive question answering: overlapping windows over long contexts; exact match and F1."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.train.data import classification_rows
from cpu_train_stack.train.data.classification_rows import Question, Questions
from cpu_train_stack.train.data.splits import Splits
from cpu_train_stack.train.data.token_files import TokenFolder
from cpu_train_stack.train.data.types import Rows, TrainerInputs
from cpu_train_stack.train.flags.arguments import Task, TaskArguments
from cpu_train_stack.train.flags.flag import COUNT, MOST, FlagRange, flag
from cpu_train_stack.train.model.pretrained import Loaded
from cpu_train_stack.train.scores import squad
from cpu_train_stack.train.tasks.sequences import sequence_length, tokenizer_padder
from cpu_train_stack.train.tasks.tokens import check_evaluated


@dataclass
class AnsweringArguments(TaskArguments):
    doc_stride: int = flag(
        "Number of tokens by which two windows over a long context overlap.", 128, takes=FlagRange(0, MOST)
    )
    max_answer_length: int = flag("Longest answer in tokens.", 30, takes=COUNT)
    n_best_size: int = flag(
        "Number of start and of end positions that are combined into candidate answers.", 20, takes=COUNT
    )
    version_2_with_negative: bool = flag("Allow questions without an answer in their context.", False)
    null_score_diff_threshold: float = flag(
        "Lead in score at which 'no answer' is chosen.",
        0.0,
        takes=FlagRange(-1_000_000, 1_000_000),
        needs="version_2_with_negative",
    )


TASK = Task(
    name="question-answering",
    order=1,
    auto_class="AutoModelForQuestionAnswering",
    peft_type="QUESTION_ANS",
    length=384,
    flags="",
    arguments=AnsweringArguments,
    columns="question, context and answers",
    fits=lambda table, _label: table.columns.keys() >= {*classification_rows.QUESTION_COLUMNS},
)


@dataclass(frozen=True)
class WindowLayout:
    """How questions and contexts are split into windows of at most `max_length` tokens, overlapping by
    `doc_stride`."""

    tokenizer: Any
    max_length: int
    doc_stride: int


class Windows(torch.utils.data.Dataset):
    """Windows as Trainer's rows: lists of integers.

    `owners`: each window's question. `offsets`: its characters, for the evaluation only: they take most of the
    memory.
    """

    def __init__(self, data: Questions, layout: WindowLayout, is_evaluated: bool) -> None:
        self._rows: list[dict[str, Any]] = []
        self.owners: list[int] = []
        self.offsets: list[list[tuple[int, int] | None]] = []
        for index, question in enumerate(data.items):
            for row, offsets in windows_of(question, layout):
                self._rows.append(row)
                self.owners.append(index)
                if is_evaluated:
                    self.offsets.append(offsets)

    def __len__(self) -> int:
        return len(self._rows)

    def lengths(self) -> list[int]:
        return [len(row["input_ids"]) for row in self._rows]

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self._rows[index]


def windows_of(
    question: Question, layout: WindowLayout
) -> list[tuple[dict[str, Any], list[tuple[int, int] | None]]]:
    """The windows of one question: the model's inputs with labels, and the characters (begin, end) of each token.

    A window without the complete answer has the label 0: its first token means "no answer in this window". The
    question is first: a decoder's tokens in the context see it, and the first token never belongs to an answer.
    """
    tokenizer = layout.tokenizer
    encoded = tokenizer(
        question.question.lstrip(),
        question.context,
        truncation="only_second",
        max_length=layout.max_length,
        stride=layout.doc_stride,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    names = [name for name in tokenizer.model_input_names if name in encoded]
    windows = []
    for window, characters in enumerate(encoded["offset_mapping"]):
        parts = encoded.sequence_ids(window)
        offsets = [tuple(span) if part == 1 else None for span, part in zip(characters, parts)]
        start, end = _labels(question, offsets)
        row = {name: encoded[name][window] for name in names}
        windows.append(({**row, "start_positions": start, "end_positions": end}, offsets))
    return windows


def _labels(question: Question, offsets: list[Any]) -> tuple[int, int]:
    if not question.answers:
        return 0, 0
    first, last = question.starts[0], question.starts[0] + len(question.answers[0])
    inside = [token for token, span in enumerate(offsets) if span and span[0] < last and span[1] > first]
    if not inside or offsets[inside[0]][0] > first or offsets[inside[-1]][1] < last:
        return 0, 0
    return inside[0], inside[-1]


class ExactMatchAndF1:
    """Trainer's compute_metrics. Predictions: start and end scores, float32 arrays [windows, tokens]."""

    def __init__(self, data: Questions, windows: Windows, options: squad.SpanOptions) -> None:
        self._data = data
        self._windows = windows
        self._options = options

    def __call__(self, evaluated: Any) -> dict[str, float]:
        starts, ends = evaluated.predictions[:2]
        check_evaluated(len(self._windows), starts, ends)
        found: list[list[squad.Window]] = [[] for _ in self._data.items]
        for owner, offsets, start, end in zip(self._windows.owners, self._windows.offsets, starts, ends):
            found[owner].append(squad.Window(offsets, start.tolist(), end.tolist()))
        texts = [
            squad.best_answer(question.context, windows, self._options)
            for question, windows in zip(self._data.items, found)
        ]
        return {
            **squad.scores(texts, [question.answers for question in self._data.items]),
            # Over exactly these windows: Trainer's own mean gives the last batches a wrong weight.
            "loss": (_loss(starts, evaluated.label_ids[0]) + _loss(ends, evaluated.label_ids[1])) / 2,
            "samples": float(len(texts)),
        }


def _loss(logits: Any, positions: Any) -> float:
    return float(torch.nn.functional.cross_entropy(torch.from_numpy(logits).float(), torch.from_numpy(positions)))


def read_rows(arguments: AnsweringArguments, splits: Splits) -> Rows:
    """The rows for training and evaluation. Raises UsageError that names the first bad row."""
    with_negative = arguments.version_2_with_negative
    notes = []
    train = classification_rows.questions(splits.train, with_negative) if splits.train else None
    if train is not None:
        train, left_out = classification_rows.trainable(train)
        if left_out:
            notes.append(f"training questions left out because the answer is not at answer_start: {left_out}")
    validation = classification_rows.questions(splits.validation, with_negative) if splits.validation else None
    return Rows(TASK, train, validation, None, tuple(notes))


def make_inputs(arguments: AnsweringArguments, rows: Rows, loaded: Loaded, _folder: TokenFolder) -> TrainerInputs:
    """Tokenize all questions. Raises UsageError if the windows leave no room for the context."""
    length = sequence_length(arguments, TASK, loaded.limit)
    layout = WindowLayout(loaded.tokenizer, length, arguments.doc_stride)
    for split in (rows.train, rows.validation):
        if split is not None:
            _check_room(split, layout)
    train = Windows(rows.train, layout, is_evaluated=False) if rows.train else None
    validation = Windows(rows.validation, layout, is_evaluated=True) if rows.validation else None
    options = squad.SpanOptions(
        n_best=arguments.n_best_size,
        max_length=arguments.max_answer_length,
        no_answer_lead=arguments.null_score_diff_threshold if arguments.version_2_with_negative else None,
    )
    return TrainerInputs(
        train=train,
        validation=validation,
        collate=tokenizer_padder(_padding_right(loaded.tokenizer), length, arguments.pad_to_max_length),
        compute_metrics=ExactMatchAndF1(rows.validation, validation, options) if validation is not None else None,
        metric="f1",
        max_seq_length=length,
    )


def _padding_right(tokenizer: Any) -> Any:
    """A tokenizer that pads on the right, because answers are positions in a row without padding."""
    right = copy.copy(tokenizer)
    right.padding_side = "right"
    return right


def _check_room(data: Questions, layout: WindowLayout) -> None:
    """Raise UsageError unless a window holds question, special tokens, overlap and one new token of the
    context."""
    texts = [item.question.lstrip() for item in data.items]
    longest = max(len(ids) for ids in layout.tokenizer(texts, add_special_tokens=False)["input_ids"])
    needed = longest + layout.tokenizer.num_special_tokens_to_add(pair=True) + layout.doc_stride + 1
    if needed > layout.max_length:
        raise UsageError(
            f"{data.source}: the longest question has {longest} tokens and --doc_stride is {layout.doc_stride}, "
            f"so windows need {needed} tokens, but max_seq_length is {layout.max_length}: "
            "use a smaller --doc_stride or a larger --max_seq_length"
        )
