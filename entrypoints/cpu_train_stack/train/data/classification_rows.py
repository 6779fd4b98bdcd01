"""Rows for classifiers and question answerers: labelled texts, and questions with contexts and answers. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.train.data import labels
from cpu_train_stack.train.data.labels import MULTI_LABEL, SINGLE_LABEL
from cpu_train_stack.train.data.language_rows import TaggedWords
from cpu_train_stack.train.data.tables import DataTable, count_and_digest, short

QUESTION_COLUMNS = ("question", "context", "answers")
_MOST_QUOTED = 5
_ROW_NUMBERS = frozenset({"id", "idx", "index", "guid"})


@dataclass(frozen=True)
class LabelledTexts:
    """One text or a pair of texts per row (`pairs` is None for single texts), and its label.

    `labels`: names of classes; for MULTI_LABEL, lists of names; for REGRESSION, floats.
    """

    source: str
    texts: Collection[str]
    pairs: Collection[str] | None
    labels: Sequence[Any]
    text_columns: tuple[str, ...]
    problem_type: str = SINGLE_LABEL

    def __len__(self) -> int:
        return len(self.texts)

    def records(self) -> Iterator[tuple[str, ...]]:
        """The text or the pair of texts of each row."""
        return zip(self.texts) if self.pairs is None else zip(self.texts, self.pairs)

    @cached_property
    def digest(self) -> str:
        return count_and_digest(zip(self.records(), self.labels))[1]


@dataclass(frozen=True)
class Question:
    """`answers` are the accepted texts and `starts` their character offsets in `context`."""

    key: str
    question: str
    context: str
    answers: tuple[str, ...]
    starts: tuple[int, ...]


@dataclass(frozen=True)
class Questions:
    source: str
    items: list[Question]

    def __len__(self) -> int:
        return len(self.items)

    @cached_property
    def digest(self) -> str:
        rows = ([item.key, item.question, item.context, item.answers] for item in self.items)
        return count_and_digest(rows)[1]


def labelled_texts(
    table: DataTable, label_column: str, text_columns: Sequence[str] | None, problem_type: str | None = None
) -> LabelledTexts:
    """Check and extract texts and labels. Raises UsageError that names the first bad row.

    `problem_type`: None to infer it from the labels.
    """
    values = table.column(label_column, "pass --label_column_name")
    problem_type = problem_type or labels.infer_problem_type(values)
    found = labels.read(table, label_column, values, problem_type)
    names = tuple(text_columns) if text_columns else _text_columns(table, label_column)
    texts = [texts_of(table, name) for name in names]
    return LabelledTexts(
        source=table.source,
        texts=texts[0],
        pairs=texts[1] if len(texts) == 2 else None,
        labels=found,
        text_columns=names,
        problem_type=problem_type,
    )


def _text_columns(table: DataTable, label_column: str) -> tuple[str, ...]:
    """As in run_glue: sentence1 and sentence2, otherwise the first one or two columns of text."""
    if "sentence1" in table.columns and "sentence2" in table.columns:
        return ("sentence1", "sentence2")
    names = [name for name in names_of_texts(table) if name != label_column]
    if not names:
        raise UsageError(
            f"{table.source} has no column of text besides '{label_column}', it has {table.listing}: "
            "pass --text_column_names"
        )
    return tuple(names[:2])


def names_of_texts(table: DataTable) -> list[str]:
    """The columns that hold texts, except numbers of rows."""
    return [
        name for name, values in table.columns.items() if name.lower() not in _ROW_NUMBERS and _is_text(values)
    ]


def _is_text(values: Iterable[Any]) -> bool:
    """Whether a column holds texts. In a csv file, numbers are strings too: a column of numbers does not count."""
    return any(isinstance(value, str) and value.strip() and not labels.is_numeric(value) for value in values)


def texts_of(table: DataTable, name: str) -> Collection[str]:
    """The texts of a column. Raises UsageError that names the first row without a text."""
    values = table.column(name, "pass --text_column_names")
    for row, value in enumerate(values, 1):
        if value is None or (isinstance(value, str) and not value.strip()):
            place = table.where(row) if table.parts else f"row {row}"
            empty = sum(1 for item in values if item is None or (isinstance(item, str) and not item.strip()))
            raise UsageError(
                f"{table.source}: {empty} of {len(values)} rows have no text in column '{name}', "
                f"first in {place}: fill or remove these rows"
            )
        if not isinstance(value, str):
            raise UsageError(
                f"{table.where(row)}: column '{name}' holds {type(value).__name__} {short(value)}, expected text"
            )
    return values


def in_order(names: list[str], classes: Sequence[str]) -> list[str]:
    """The data set's classes in their order if they include all `names`: the F1 of two labels is the second
    label's."""
    return list(classes) if set(names) <= set(classes) else names


def distinct(data: LabelledTexts | TaggedWords) -> list[str]:
    """The names of the classes, in order."""
    if isinstance(data, LabelledTexts) and data.problem_type == MULTI_LABEL:
        return labels.label_names(chain.from_iterable(data.labels))
    return labels.label_names(data.labels)


def check_label_names(names: Sequence[str], data: LabelledTexts) -> None:
    """Raise UsageError for training labels that are all equal, or nearly all different."""
    if data.problem_type == MULTI_LABEL:
        if not names:
            raise UsageError(f"{data.source}: no row has a label, expected at least one")
        return
    if len(names) < 2:
        raise UsageError(f"{data.source}: all {len(data)} rows have the label '{names[0]}', expected two or more")
    if len(data) >= 20 and len(names) > len(data) / 2:
        raise UsageError(
            f"{data.source}: {len(names)} different labels in {len(data)} rows, expected classes: "
            "check --label_column_name"
        )


def check_known_labels(names: Sequence[str], data: LabelledTexts | TaggedWords) -> None:
    """Raise UsageError for labels that the model does not have."""
    strange = sorted(set(distinct(data)) - set(names))
    if strange:
        raise UsageError(
            f"{data.source} has {quoted(strange)} in its label column, but the labels are {quoted(names)}: "
            "training and validation data must have the same labels"
        )


def questions(table: DataTable, with_negative: bool) -> Questions:
    """Check and extract questions, contexts and answers. Raises UsageError that names the first bad row."""
    for name in QUESTION_COLUMNS:
        table.column(name, "question-answering needs question, context and answers")
    keys = list(table.columns.get("id", ())) or [str(row) for row in range(table.rows)]
    texts, contexts = list(texts_of(table, "question")), list(texts_of(table, "context"))
    items = []
    for row, answers in enumerate(table.columns["answers"]):
        found, starts = _answers(table, row, answers)
        if not found and not with_negative:
            raise UsageError(f"{table.where(row + 1)}: the question has no answer: pass --version_2_with_negative")
        items.append(Question(str(keys[row]), texts[row], contexts[row], found, starts))
    if len({item.key for item in items}) != len(items):
        raise UsageError(f"{table.source}: column 'id' names a question twice, expected a different id for each")
    return Questions(table.source, items)


def _answers(table: DataTable, row: int, answers: Any) -> tuple[tuple[str, ...], tuple[int, ...]]:
    if isinstance(answers, list) and all(isinstance(item, dict) for item in answers):
        answers = {key: [item.get(key) for item in answers] for key in ("text", "answer_start")}
    if isinstance(answers, dict):
        texts, starts = answers.get("text"), answers.get("answer_start")
        if (
            isinstance(texts, list)
            and isinstance(starts, list)
            and len(texts) == len(starts)
            and all(isinstance(text, str) for text in texts)
            and all(isinstance(start, int) for start in starts)
        ):
            # An answer without text is no answer.
            given = [(text, start) for text, start in zip(texts, starts) if text.strip()]
            return tuple(text for text, _ in given), tuple(start for _, start in given)
    raise UsageError(
        f"{table.where(row + 1)}: column 'answers' holds {short(answers)}, "
        'expected {"text": [..], "answer_start": [..]}'
    )


def trainable(data: Questions) -> tuple[Questions, int]:
    """The questions whose first answer is at its offset in the context, and the number of other questions."""
    kept = [
        item
        for item in data.items
        if not item.answers
        or item.context[item.starts[0] : item.starts[0] + len(item.answers[0])] == item.answers[0]
    ]
    if not kept:
        raise UsageError(f"{data.source}: no answer is found at its answer_start, expected character offsets")
    return Questions(data.source, kept), len(data) - len(kept)


def quoted(names: Sequence[str]) -> str:
    """The first names in quotes, and how many there are besides."""
    listed = ", ".join(f"'{name:.40}'" for name in names[:_MOST_QUOTED])
    return listed + (f" and {len(names) - _MOST_QUOTED} more" if len(names) > _MOST_QUOTED else "")
