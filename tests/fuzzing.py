"""Random command lines, files and records, the same for a seed: shared by the fuzz of ./inv and of entrypoint.

CTS_FUZZ=NUMBER in the environment of the tests sets how many cases each fuzz tries.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Iterator, Sequence

VALUES = (
    *("", "-", "--", "-1", "0", "1", "3", "1e99", "nan", "9" * 400, "\u0663", "\x1b]0;t\x07", "a\nb", "$(id)"),
    *("9" * 5000, "1(x99999999999)", "n[0-99999999999]"),
    *("a$b", "\U0001f600", "x" * 5000, "/dev/null", "/", ".", "none", "node-0", "A=1", "RANK=3", "=", "1.5"),
    *("64g", "true", "https://u:p@h/x", "a@sha256:" + "0" * 64, "mpirun", "2.13", "torch=1", "--help", "%s{0}"),
)
_MOST_SECONDS = 10.0


def cases(default: int) -> range:
    """The seeds: `default` of them, which take a few seconds, or CTS_FUZZ."""
    return range(int(os.environ.get("CTS_FUZZ", default)))


def words(
    chance: random.Random, names: Sequence[Sequence[str]], flags: Sequence[str], values: Sequence[str] = VALUES
) -> list[str]:
    """A command of `names`, and up to five times a flag, a value, both, or `--` and a value."""
    found = [*chance.choice(names)]
    for _ in range(chance.randrange(6)):
        flag, value = f"--{chance.choice(flags)}", chance.choice(values)
        found += chance.choice(([flag, value], [f"{flag}={value}"], [flag], [value], ["--", value]))
    return found


def mutated(data: bytes, chance: random.Random) -> bytes:
    """The content of a file with a part left out, repeated, or replaced by a value."""
    for _ in range(chance.choice((1, 1, 2, 5))):
        begin = chance.randrange(len(data) + 1)
        end = min(len(data), begin + chance.choice((0, 1, 1, 5, 50, 10_000)))
        new = chance.choice((b"", b"\0", b"\xff", b"[" * 3000, b"{", b"&a [*a]", data[begin:end] * 2))
        new = chance.choice((new, chance.choice(VALUES).encode()))
        data = data[:begin] + new + data[end:]
    return data


@contextlib.contextmanager
def one_case(*described: object) -> Iterator[None]:
    """A case that neither raises an error nor takes long. A failure describes the case."""
    began = time.monotonic()
    try:
        yield
    except BaseException as error:
        raise AssertionError(repr(described)[:3000]) from error
    assert time.monotonic() - began < _MOST_SECONDS, described
