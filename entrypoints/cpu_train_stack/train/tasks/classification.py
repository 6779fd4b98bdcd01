"""Text classification: one class per row, any number of classes per row, or a number per row (regression)."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Callable, Union

import numpy
import torch
from torch.nn import functional

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.train.data import classification_rows
from cpu_train_stack.train.data.classification_rows import LabelledTexts
from cpu_train_stack.train.data.labels import MULTI_LABEL, REGRESSION, SINGLE_LABEL
from cpu_train_stack.train.data.language_rows import TaggedWords
from cpu_train_stack.train.data.splits import Splits
from cpu_train_stack.train.data.tables import batches, parse_text_columns
from cpu_train_stack.train.data.token_files import TokenFolder
from cpu_train_stack.train.data.token_rows import TokenRows
from cpu_train_stack.train.data.types import Rows, TrainerInputs
from cpu_train_stack.train.flags.arguments import Task, TaskArguments
from cpu_train_stack.train.flags.flag import flag
from cpu_train_stack.train.model.configuration import label_count_of, label_names_of, pad_like, predicts_numbers
from cpu_train_stack.train.model.pretrained import Loaded
from cpu_train_stack.train.scores import glue
from cpu_train_stack.train.tasks.sequences import TokenizedRows, sequence_length, tokenizer_padder
from cpu_train_stack.train.tasks.tokens import check_evaluated

Labelled = Union[LabelledTexts, TaggedWords]
# Outputs of the model and labels -> scores by name.
Score = Callable[[Any, Any], "dict[str, float]"]


@dataclass
class ClassificationArguments(TaskArguments):
    do_regression: bool = flag(
        "text-classification: predict a number. Needed only if all labels are integers.", False
    )


TASK = Task(
    name="text-classification",
    order=5,
    auto_class="AutoModelForSequenceClassification",
    peft_type="SEQ_CLS",
    length=128,
    flags="label_column_name text_column_names label_smoothing_factor",
    arguments=ClassificationArguments,
    columns="'{label}' (--label_column_name) and a text",
    fits=lambda table, label: label in table.columns,
)
_MASK = "attention_mask"


class LabelledTokens(TokenizedRows):
    """The tokens of each row.

    A row: lists of integers, and the label: the number of its class, a 0.0 or 1.0 for each class, or a float.
    """

    def __init__(
        self, data: LabelledTexts, label_names: Sequence[str], tokenizer: Any, max_length: int, folder: TokenFolder
    ) -> None:
        self._labels = targets(data, label_names)
        encode = partial(tokenizer, truncation=True, max_length=max_length)
        self._names = list(encode("a", None if data.pairs is None else "a"))
        file = folder.file(tokenizer, data.digest, "text-classification", max_length, self._names)
        self._rows = TokenRows(self._tokens(data, encode), len(self._stored), shared=file)

    @property
    def _stored(self) -> list[str]:
        """The names of the model's inputs, without the attention mask: no row has padding yet."""
        return [name for name in self._names if name != _MASK]

    def _tokens(self, data: LabelledTexts, encode: Any) -> Iterator[Any]:
        for rows in batches(data.records()):
            encoded = encode(*map(list, zip(*rows)))
            yield from zip(*(encoded[name] for name in self._stored))

    def __getitem__(self, index: int) -> dict[str, Any]:
        values = dict(zip(self._stored, self._rows[index].tolist()))
        mask = [1] * self._rows.lengths[index]
        return {**{name: values.get(name, mask) for name in self._names}, "labels": self._labels[index]}


def targets(data: LabelledTexts, label_names: Sequence[str]) -> Sequence[Any]:
    """The labels as the model's loss expects them."""
    if data.problem_type == REGRESSION:
        return data.labels
    if data.problem_type == MULTI_LABEL:
        known: dict[tuple[str, ...], list[float]] = {}  # one list for all rows with the same labels
        return [known.setdefault(tuple(row), [float(name in row) for name in label_names]) for row in data.labels]
    places = {name: number for number, name in enumerate(label_names)}
    return array("i", (places[label] for label in data.labels))


class Scores:
    """Trainer's compute_metrics. Predictions: float32 array [rows, outputs]. `rows`: how many are evaluated."""

    def __init__(self, rows: int, score: Score) -> None:
        self._rows = rows
        self._score = score

    def __call__(self, evaluated: Any) -> dict[str, float]:
        outputs = evaluated.predictions[0] if isinstance(evaluated.predictions, tuple) else evaluated.predictions
        labels = evaluated.label_ids
        check_evaluated(self._rows, outputs, labels)
        # The loss over exactly these rows: Trainer's own mean gives the last batches a wrong weight.
        return {**self._score(outputs, labels), "samples": float(len(labels))}


def classes(outputs: Any, labels: Any) -> dict[str, float]:
    """One class per row. `labels`: integers [rows]. `f1`: of the second class of two, otherwise the mean."""
    from sklearn.metrics import accuracy_score, f1_score  # the import takes half a second

    chosen = numpy.argmax(outputs, axis=-1)
    average = "binary" if outputs.shape[1] == 2 else "macro"
    loss = functional.cross_entropy(torch.from_numpy(outputs).float(), torch.from_numpy(labels).long())
    return {
        "accuracy": float(accuracy_score(labels, chosen)),
        "f1": float(f1_score(labels, chosen, average=average, zero_division=0)),
        "loss": float(loss),
    }


def sets(outputs: Any, labels: Any) -> dict[str, float]:
    """Any number of classes per row. `labels`: 0 or 1 [rows, classes]. From a probability of 0.5, a class counts.

    `f1`: over all decisions (micro). `f1_macro`: the mean over the classes. `accuracy`: of complete rows.
    """
    chosen, wanted = outputs > 0, labels > 0
    loss = functional.binary_cross_entropy_with_logits(
        torch.from_numpy(outputs).float(), torch.from_numpy(labels).float()
    )
    return {
        **glue.f1_of_sets(chosen, wanted),
        "accuracy": float((chosen == wanted).all(axis=1).mean()),
        "loss": float(loss),
    }


def numbers(outputs: Any, labels: Any) -> dict[str, float]:
    """A number per row. `labels`: floats [rows]. The correlations of equal predictions are 0."""
    from scipy import stats

    found = outputs.reshape(-1).astype(float)
    varies = len(found) > 1 and numpy.ptp(found) > 0 and numpy.ptp(labels) > 0
    error = found - labels
    return {
        "pearson": float(stats.pearsonr(found, labels)[0]) if varies else 0.0,
        "spearmanr": float(stats.spearmanr(found, labels)[0]) if varies else 0.0,
        "mae": float(numpy.abs(error).mean()),
        "loss": float((error**2).mean()),
    }


# By problem type: the scores, and the name of the metric in result.json.
_SCORES: dict[str, tuple[Score, str]] = {
    SINGLE_LABEL: (classes, "accuracy"),
    MULTI_LABEL: (sets, "f1"),
    REGRESSION: (numbers, "pearson"),
}


def read_rows(arguments: ClassificationArguments, splits: Splits) -> Rows:
    """The rows for training and evaluation. Raises UsageError that names the first bad row."""
    names = parse_text_columns(arguments.text_column_names)
    label = arguments.label_column_name
    numbers = arguments.do_regression or (splits.train is None and predicts_numbers(arguments))
    kind = REGRESSION if numbers else None
    train = classification_rows.labelled_texts(splits.train, label, names, kind) if splits.train else None
    if train is not None:
        # Validation data may have more columns, and only integers as numbers: read it like the training data.
        names, kind = train.text_columns, train.problem_type
    validation = (
        classification_rows.labelled_texts(splits.validation, label, names, kind) if splits.validation else None
    )
    read = next(rows for rows in (train, validation) if rows is not None)
    if read.problem_type == REGRESSION:
        labels, found = None, f"numbers from {min(read.labels):g} to {max(read.labels):g}"
    else:
        labels = choose_labels(arguments, train, validation, splits.any.classes.get(label, []))
        several = ", any number per row," if read.problem_type == MULTI_LABEL else ""
        found = f"{len(labels)} labels{several}"
    note = f"text-classification: {found} from '{label}', text from '{', '.join(read.text_columns)}'"
    return Rows(TASK, train, validation, labels, (note,), read.problem_type)


def choose_labels(
    arguments: TaskArguments, train: Labelled | None, validation: Labelled | None, classes: Sequence[str] = ()
) -> list[str]:
    """The labels of the training data, in the order of the model if it has the same ones; for evaluation alone,
    those of the model. `classes`: those of the data set.

    Raises UsageError for validation data with other labels.
    """
    if train is not None:
        names = classification_rows.distinct(train)
        if isinstance(train, LabelledTexts):
            classification_rows.check_label_names(names, train)
        names = classification_rows.in_order(names, classes)
        known = label_names_of(arguments)
        if known is not None and set(known) == set(names):
            names = known  # the order of the model's head
    elif validation is not None:
        found = classification_rows.in_order(classification_rows.distinct(validation), classes)
        names = label_names_of(arguments) or _numbered(arguments, found)
    else:
        raise UsageError("no data: pass --train_file and --validation_file, or --dataset_name")
    if validation is not None:
        classification_rows.check_known_labels(names, validation)
    return names


def _numbered(arguments: TaskArguments, found: list[str]) -> list[str]:
    """The labels for a model whose configuration does not name them: its numbers, if `found` has only those.

    The data may lack a label. With fewer labels than the model has, its head would get random weights.
    """
    numbers = [str(number) for number in range(label_count_of(arguments))]
    return numbers if set(found) <= set(numbers) else found


def make_inputs(arguments: TaskArguments, rows: Rows, loaded: Loaded, folder: TokenFolder) -> TrainerInputs:
    """Raises UsageError if max_seq_length does not fit the model."""
    length = sequence_length(arguments, TASK, loaded.limit)
    pad_like(loaded.tokenizer, loaded.model.config)
    labels = rows.labels or []
    score, metric = _SCORES[rows.problem_type or SINGLE_LABEL]

    def tokens(split: LabelledTexts | None) -> Any:
        return LabelledTokens(split, labels, loaded.tokenizer, length, folder) if split else None

    return TrainerInputs(
        train=tokens(rows.train),
        validation=tokens(rows.validation),
        collate=tokenizer_padder(loaded.tokenizer, length, arguments.pad_to_max_length),
        compute_metrics=Scores(len(rows.validation), score) if rows.validation else None,
        metric=metric,
        max_seq_length=length,
    )
