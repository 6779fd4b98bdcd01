"""Shell completion of ./inv: invoke's own scripts, for a command that is not on the PATH."""

import contextlib
import io
import itertools
import shlex
from collections.abc import Sequence
from pathlib import Path

from invoke.collection import Collection
from invoke.completion.complete import print_completion_script
from invoke.parser.context import ParserContext

from cpu_train_stack.cli.errors import UsageError

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


def candidates(words: Sequence[str], tasks: Collection, own: ParserContext) -> list[str]:
    """The names for the last word, which is unfinished. None after `--`: the shell completes files there.

    An option is one of the last task, or of ./inv itself (`own`). After a group's name, the names are its tasks.
    """
    if "--" in words[:-1]:
        return []
    groups = tasks.collections
    if words and words[-1].startswith("-"):
        contexts = {context.name: context for context in tasks.to_contexts()}
        names = [*words, *(f"{group}.{name}" for group, name in itertools.pairwise(words) if group in groups)]
        found = [contexts[name] for name in names if name in contexts]
        return [flag for flag in (found[-1] if found else own).flag_names() if flag.startswith("--")]
    for word in words[-2:]:
        if word in groups:
            return [*groups[word].task_names]
    return [*groups, *(name for name in tasks.task_names if "." not in name)]
