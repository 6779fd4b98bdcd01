"""Pairs of sentences for MiniLM's job: Python's documentation, as long as MRPC's sentences are."""

from __future__ import annotations

import csv
import random
import re
from pathlib import Path

from tooling.cluster import demo_data

ROWS = 1024
# Words of English: names of code fall into many tokens each.
PLAIN = re.compile(r"[A-Za-z][a-z]*[.,]?")
# Words of a sentence of MRPC's training set: mean, standard deviation, fewest and most.
MEAN, DEVIATION, FEWEST, MOST = 19.0, 5.1, 6, 30


def write(folder: Path, stdlib: Path | None = None) -> Path:
    """Writes pairs.csv (sentence1, sentence2, label), the same on the same Python, and returns its path."""
    train, _test = demo_data.write(folder / "texts", stdlib)
    with train.open(encoding="utf-8", newline="") as stream:
        words = [word for row in csv.DictReader(stream) for word in row["text"].split() if PLAIN.fullmatch(word)]
    path = folder / "pairs.csv"
    chance = random.Random(0)  # noqa: S311 - lengths, not secrets
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(("sentence1", "sentence2", "label"))
        place = 0
        for _ in range(ROWS):
            pair = []
            for _ in range(2):
                length = round(min(MOST, max(FEWEST, chance.gauss(MEAN, DEVIATION))))
                pair.append(" ".join(words[(place + number) % len(words)] for number in range(length)))
                place += length
            writer.writerow((*pair, chance.randrange(2)))
    return path
