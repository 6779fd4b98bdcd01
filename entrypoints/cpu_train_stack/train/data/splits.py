"""Load the tables for training and evaluation, from files or from the hub."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from cpu_train_stack.cli.errors import UsageError, one_line
from cpu_train_stack.train.data import tables
from cpu_train_stack.train.flags.arguments import TaskArguments

# Rows of the hub that are decoded at a time.
_BATCH = 1000


@dataclass(frozen=True)
class Splits:
    """The tables of a run; None for a split that is not used."""

    train: tables.DataTable | None
    validation: tables.DataTable | None

    @property
    def any(self) -> tables.DataTable:
        """One of the tables. The check of the flags refuses a run without any."""
        return next(table for table in (self.train, self.validation) if table is not None)


def load(arguments: TaskArguments, do_train: bool, do_eval: bool) -> Splits:
    """The tables, cut to max_train_samples and max_eval_samples. Raises UsageError."""
    if arguments.dataset_name is not None:
        return _from_hub(arguments, do_train, do_eval)
    train = tables.read(str(arguments.train_file)) if do_train else None
    validation = tables.read(str(arguments.validation_file)) if do_eval else None
    return Splits(
        train.first(arguments.max_train_samples) if train else None,
        validation.first(arguments.max_eval_samples) if validation else None,
    )


def _from_hub(arguments: TaskArguments, do_train: bool, do_eval: bool) -> Splits:
    import datasets

    datasets.disable_progress_bars()
    name = str(arguments.dataset_name)
    try:
        loaded = datasets.load_dataset(name, arguments.dataset_config_name)
    except Exception as error:
        raise UsageError(f"data set '{name}' cannot be loaded: {one_line(error)}") from error
    train = _table(loaded, name, ("train",), arguments.max_train_samples) if do_train else None
    names = ("validation", "validation_matched", "test")
    return Splits(train, _table(loaded, name, names, arguments.max_eval_samples) if do_eval else None)


def _table(loaded: Any, name: str, splits: tuple[str, ...], rows: int | None) -> tables.DataTable:
    """The first of `splits` that the data set has. Class numbers are replaced by class names."""
    split = next((split for split in splits if split in loaded), None)
    if split is None:
        fix = "choose another data set"
        if "train" not in splits:
            fix = "to train without an evaluation, pass --do_train, and neither --do_eval nor --eval_strategy"
        raise UsageError(
            f"data set '{name}' has the splits {', '.join(loaded)}, expected {' or '.join(splits)}: {fix}"
        )
    dataset = loaded[split]
    if rows is not None:
        dataset = dataset.select(range(min(rows, len(dataset))))
    classes: dict[str, list[str]] = {}
    lists = set()
    for column, feature in dataset.features.items():
        names = getattr(feature, "names", None)
        if isinstance(names, list):  # ClassLabel
            classes[column] = names
        # A list of ClassLabels. Every release of datasets has the attribute `feature`.
        names = getattr(getattr(feature, "feature", None), "names", None)
        if isinstance(names, list):
            classes[column] = names
            lists.add(column)

    def value(column: str, found: Any) -> Any:
        if column in lists:
            return found and [_class_name(classes[column], one) for one in found]
        return _class_name(classes[column], found) if column in classes else found

    def reader(names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        for batch in dataset.select_columns(list(names)).iter(_BATCH):
            for row in zip(*(batch[name] for name in names)):
                yield tuple(map(value, names, row))

    columns = tables.streams(dataset.column_names, reader, len(dataset))
    return tables.DataTable(f"{name} ({split})", columns, classes, reader=reader)


def _class_name(names: list[str], value: Any) -> Any:
    """The name of class `value`. -1 (row without a label) and -100 (word without a label) stay numbers: they are
    an error only if the run uses the column."""
    return names[value] if isinstance(value, int) and 0 <= value < len(names) else value
