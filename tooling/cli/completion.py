"""Shell completion of ./inv: invoke's own scripts and candidates, for a command that is not on the PATH."""

import contextlib
import io
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from invoke.collection import Collection
from invoke.completion.complete import complete, print_completion_script
from invoke.parser import Parser, ParseResult
from invoke.parser.context import ParserContext

from tooling.basis.errors import UsageError

NAME = "inv"  # shells complete a path such as ./inv by its last part
SHELLS = ("bash", "zsh", "fish")


def script(shell: str, inv: Path) -> str:
    """The shell's completion script for `inv`, `./inv` and any other path to it. Raises UsageError.

    The script runs the executable `inv` to get the candidates.
    """
    if shell not in SHELLS:
        raise UsageError(f"--print-completion-script {shell!r}: expected {', '.join(SHELLS)}")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        print_completion_script(shell, [NAME])
    path = shlex.quote(str(inv))
    lines = printed.getvalue().splitlines()
    # This line runs inv; elsewhere the name is the command to complete.
    return "\n".join(line.replace(NAME, path, 1) if "--complete --" in line else line for line in lines)


def candidates(words: Sequence[str], groups: Mapping[str, Iterable[str]], tasks: Iterable[str]) -> list[str]:
    """The names for the last word, which is unfinished: after a group's name its tasks, otherwise all tasks.

    `groups` maps a group's name to its tasks' names. Group tasks have a dot in `tasks`.
    """
    for word in words[-2:]:
        if word in groups:
            return list(groups[word])
    return [*groups, *(name for name in tasks if "." not in name)]


def print_candidates(words: Sequence[str], initial: ParserContext, tasks: Collection, parser: Parser) -> None:
    """Prints candidates for the last of ./inv's arguments. None after `--`: the shell completes files there."""
    if "--" in words[:-1]:
        return
    if not (words and words[-1].startswith("-")):
        groups = {name: group.task_names for name, group in tasks.collections.items()}
        print("\n".join(candidates(words, groups, tasks.task_names)))
        return
    line = ParseResult()
    line.remainder = " ".join([NAME, *words])
    complete([NAME], line, initial, tasks, parser)
