"""Named entities in tagged words, and their F1 as in CoNLL's evaluation and seqeval's default. Pure.

Tags are IOB1, IOB2, IOBES or BILOU: a prefix and a type, `B-PER`. An entity is correct if its type, first word and
last word are correct.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

OUTSIDE = "O"
# BILOU's names for the last word and for an entity of one word.
_SAME = {"L": "E", "U": "S"}
_PREFIXES = frozenset("BIESLU")

Entity = tuple[str, int, int]


def are_entities(tags: Iterable[str]) -> bool:
    """Whether all tags are tags of entities. Other tags, such as parts of speech, have no F1 of entities."""
    names = set(tags) - {OUTSIDE}
    return bool(names) and all(name[0] in _PREFIXES and (len(name) == 1 or name[1] == "-") for name in names)


def found_in(tags: Sequence[str]) -> set[Entity]:
    """The entities as (type, first word, last word + 1).

    An entity ends before `O`, `B` and `S`, after `E` and `S`, and where the type changes. `I` and `E` outside an
    entity begin one.
    """
    entities: set[Entity] = set()
    begin, kind, is_open = 0, "", False
    for place, tag in enumerate([*tags, OUTSIDE]):
        prefix, _, tag_kind = tag.partition("-")
        prefix = _SAME.get(prefix, prefix)
        if is_open and prefix in ("I", "E") and tag_kind == kind:
            is_open = prefix == "I"
            if not is_open:
                entities.add((kind, begin, place + 1))
            continue
        if is_open:
            entities.add((kind, begin, place))
        begin, kind, is_open = place, tag_kind, prefix in ("B", "I")
        if prefix in ("E", "S"):
            entities.add((kind, begin, place + 1))
    return entities


def scores(predicted: Sequence[Sequence[str]], expected: Sequence[Sequence[str]]) -> dict[str, float]:
    """Precision, recall and F1 over the entities of all rows; 0.0 instead of a division by 0."""
    return _scores(*_entities(predicted, expected))


def scores_by_type(
    predicted: Sequence[Sequence[str]], expected: Sequence[Sequence[str]]
) -> dict[str, dict[str, float]]:
    """The same for each type of entity, with the `number` of expected entities."""
    ours, theirs = _entities(predicted, expected)
    found = {}
    for kind in sorted({entity[1] for entity in ours | theirs}):
        own, wanted = ({one for one in entities if one[1] == kind} for entities in (ours, theirs))
        found[kind] = {**_scores(own, wanted), "number": len(wanted)}
    return found


def _entities(
    predicted: Sequence[Sequence[str]], expected: Sequence[Sequence[str]]
) -> tuple[set[tuple[int, str, int, int]], set[tuple[int, str, int, int]]]:
    """The entities of all rows, with the number of the row."""
    ours, theirs = (
        {(row, *entity) for row, tags in enumerate(rows) for entity in found_in(tags)}
        for rows in (predicted, expected)
    )
    return ours, theirs


def _scores(guessed: set[Any], true: set[Any]) -> dict[str, float]:
    right = len(guessed & true)
    precision, recall = right / len(guessed) if guessed else 0.0, right / len(true) if true else 0.0
    total = precision + recall
    return {"precision": precision, "recall": recall, "f1": 2 * precision * recall / total if total else 0.0}
