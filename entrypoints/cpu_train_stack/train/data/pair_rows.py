"""Rows of a source and a target text, such as an article and its summary, or a text in two languages. Pure."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.train.data.classification_rows import names_of_texts, texts_of
from cpu_train_stack.train.data.language_rows import Documents, Kind
from cpu_train_stack.train.data.tables import DataTable, RowStream, count_and_digest, short

_COLUMNS = (("source", "target"), ("prompt", "completion"))
# The column of run_translation's files: {"en": "..", "ro": ".."} in each row.
_LANGUAGES = "translation"


def has_pairs(table: DataTable) -> bool:
    """Whether the columns name source and target."""
    return _LANGUAGES in table.columns or bool(_named(table))


def pairs(table: DataTable, names: tuple[str, ...] | None) -> Documents:
    """Check and extract sources and targets, as pairs. Raises UsageError that names the first bad row.

    `names`: the two columns, or the two languages. Without them: source and target, or prompt and completion,
    otherwise the first two columns of text, as in run_summarization.
    """
    if _LANGUAGES in table.columns:
        table = _by_language(table)
        if names is None:
            raise UsageError(
                f"{table.source}: column '{_LANGUAGES}' has the languages {table.listing}: pass "
                "--text_column_names with the languages of source and target, such as en,ro"
            )
    names = names or _named(table) or tuple(names_of_texts(table)[:2])
    if len(names) != 2:
        raise UsageError(
            f"{table.source} has the columns {table.listing}: expected a source and a target, pass two columns as "
            "--text_column_names"
        )
    for name in names:
        texts_of(table, name)
    items = RowStream(partial(table.records, *names), table.rows)
    return Documents(table, Kind.COMPLETION, items, count_and_digest(items)[1])


def _named(table: DataTable) -> tuple[str, ...]:
    return next((names for names in _COLUMNS if all(name in table.columns for name in names)), ())


def _by_language(table: DataTable) -> DataTable:
    """The texts of each language as a column."""
    rows = list(table.columns[_LANGUAGES])
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise UsageError(
                f"{table.where(number)}: column '{_LANGUAGES}' holds {short(row)}, expected a text for each "
                'language: {"en": "..", "ro": ".."}'
            )
    languages = dict.fromkeys(language for row in rows for language in row)
    columns = {language: [row.get(language) for row in rows] for language in languages}
    return replace(table, columns=columns, reader=None)
