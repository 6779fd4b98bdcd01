"""Shell completion of ./inv: invoke's own scripts and candidates, for a command that is not on the PATH."""

from __future__ import annotations

import contextlib
import io
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from invoke.collection import Collection
from invoke.completion.complete import complete, print_completion_script
from invoke.parser import Parser, ParseResult
from invoke.parser.context import ParserContext

from tooling.basis.errors import UsageError

NAME = "inv"  # shells look a path such as ./inv up by its last part
SHELLS = ("bash", "zsh", "fish")


def script(shell: str, inv: Path) -> str:
    """What a shell reads to complete `inv`, `./inv` and any other path to it; it asks `inv`. Raises UsageError."""
    if shell not in SHELLS:
        raise UsageError(f"--print-completion-script {shell!r}: expected {', '.join(SHELLS)}")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        print_completion_script(shell, [NAME])
    path = shlex.quote(str(inv))
    lines = printed.getvalue().splitlines()
    # The line that asks; everywhere else the name says what is completed.
    return "\n".join(line.replace(NAME, path, 1) if "--complete --" in line else line for line in lines)


def groups(tasks: Iterable[str]) -> list[str]:
    """First words that several tasks share: `bench` of bench-collectives and bench-launch."""
    counted = Counter(name.partition("-")[0] for name in tasks if "-" in name)
    return [word for word, count in counted.items() if count > 1]


def second_words(words: Sequence[str], tasks: Iterable[str]) -> list[str]:
    """What may follow `bench`, which is the last word, or the one before a word that is being typed."""
    first = set(words[-2:]) & set(groups(tasks))
    return [name.partition("-")[2] for name in tasks if name.partition("-")[0] in first]


def print_candidates(words: Sequence[str], initial: ParserContext, tasks: Collection, parser: Parser) -> None:
    """For a line so far without its program. Nothing behind a `--`: files are completed there."""
    names = list(tasks.task_names)
    if "--" in words[:-1]:
        return
    if not (words and words[-1].startswith("-")):
        print("\n".join(second_words(words, names) or groups(names)))
    line = ParseResult()
    line.remainder = " ".join([NAME, *words])
    complete([NAME], line, initial, tasks, parser)
