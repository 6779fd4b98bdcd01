"""The data of MiniLM's job in `./inv bench train`."""

import csv
import random
import re
from pathlib import Path

from tooling.cluster import demo_data

PAIRS = 1024
# English words. Names in code would become many tokens each.
PLAIN = re.compile(r"[A-Za-z][a-z]*[.,]?")
# The words in a sentence of MRPC's training set: mean, standard deviation, minimum and maximum.
MEAN, DEVIATION, FEWEST, MOST = 19.0, 5.1, 6, 30


def write(folder: Path, stdlib: Path | None = None) -> Path:
    """Write pairs.csv (sentence1, sentence2, label) for MiniLM's job, and return its path.

    Sentences come from Python's documentation, as long as MRPC's sentences. The same Python gives the same file.
    """
    train, _test = demo_data.write(folder / "texts", stdlib)
    with train.open(encoding="utf-8", newline="") as stream:
        words = [word for row in csv.DictReader(stream) for word in row["text"].split() if PLAIN.fullmatch(word)]
    path = folder / "pairs.csv"
    generator = random.Random(0)  # noqa: S311 - lengths, not secrets
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(("sentence1", "sentence2", "label"))
        place = 0
        for _ in range(PAIRS):
            pair = []
            for _ in range(2):
                length = round(min(MOST, max(FEWEST, generator.gauss(MEAN, DEVIATION))))
                pair.append(" ".join(words[(place + number) % len(words)] for number in range(length)))
                place += length
            writer.writerow((*pair, generator.randrange(2)))
    return path
