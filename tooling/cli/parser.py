"""./inv's command line: invoke's parser, with errors of one line, exit code 2 and a nearest match."""

from __future__ import annotations

import difflib
import itertools
import re
import sys
from collections.abc import Iterable, Sequence
from typing import NoReturn

from invoke.collection import Collection
from invoke.exceptions import Exit, ParseError
from invoke.program import Program

from entrypoints import contract
from tooling.basis.errors import UsageError
from tooling.basis.paths import ROOT
from tooling.cli import completion

_UNKNOWN = re.compile(r"No idea what '(?P<word>.*)' is!")
_NO_VALUE = re.compile(r"Flag .*?Argument: (?P<name>[\w-]+).* needed value")
_MISSING = re.compile(r"'(?P<task>.*)' did not receive required positional arguments: (?P<names>.*)")
_NOT_A_NUMBER = re.compile(r"invalid literal for int\(\) with base 10: '(?P<value>.*)'")
_NOT_A_DECIMAL = re.compile(r"could not convert string to float: '(?P<value>.*)'")


def remainder_argv(argv: Sequence[str] | None = None) -> list[str]:
    """The arguments after the first `--`, as typed: invoke's Context.remainder loses their quoting."""
    argv = sys.argv if argv is None else argv
    return list(argv[argv.index("--") + 1 :]) if "--" in argv else []


def join_names(argv: Sequence[str], tasks: Iterable[str]) -> list[str]:
    """`bench collectives` is the task bench-collectives: two words that together name a task become one."""
    own = list(argv[: argv.index("--")] if "--" in argv else argv)
    names = set(tasks)
    for place, pair in enumerate(itertools.pairwise(own)):
        if "-".join(pair) in names:
            return [*argv[:place], "-".join(pair), *argv[place + 2 :]]
    return list(argv)


def _nearest(word: str, choices: Iterable[str]) -> str:
    choices = list(choices)
    if longer := [choice.replace("-", " ", 1) for choice in choices if choice.startswith(f"{word}-")]:
        return f", there is: {', '.join(longer)};"
    match = difflib.get_close_matches(word, choices, n=1, cutoff=0.6)
    return f"; did you mean {match[0]!r}?" if match else ";"


def explain(error: ParseError, tasks: Iterable[str]) -> str:
    """One line for a parse error: what was found, the nearest that exists, where all of them are shown."""
    task = error.context.name if error.context else None
    where = f"./inv {task} --help shows its options" if task else "./inv --list shows the tasks"
    text = " ".join(str(error).split())
    if match := _UNKNOWN.search(text):
        word = match["word"]
        if not word.startswith("-"):
            return f"there is no task {word!r}{_nearest(word, tasks)} ./inv --list shows the tasks"
        flags = [*error.context.flags, *error.context.inverse_flags] if error.context else []
        return f"{task or './inv'} has no option {word!r}{_nearest(word, flags)} {where}"
    if match := _NO_VALUE.search(text):
        return f"{task or './inv'}: --{match['name']} needs a value; {where}"
    if match := _MISSING.search(text):
        names = match["names"].replace("'", "").upper()
        return f"{match['task']} needs {names}; ./inv {match['task']} --help shows what it takes"
    return f"{text}; {where}"


def explain_value(error: ValueError, argv: Sequence[str]) -> str:
    """One line for an option's value of the wrong type. Which option, the parser does not say: argv does."""
    for pattern, expected in ((_NOT_A_NUMBER, "a whole number"), (_NOT_A_DECIMAL, "a number")):
        if match := pattern.fullmatch(str(error)):
            value = match["value"]
            for before, word in itertools.pairwise(argv):
                flag, _, joined = word.partition("=")
                if joined == value and flag.startswith("-"):
                    return f"{flag} expects {expected}, found {value!r}"
                if word == value and before.startswith("-"):
                    return f"{before} expects {expected}, found {value!r}"
            return f"expected {expected}, found {value!r}"
    return " ".join(str(error).split())


class TaskProgram(Program):
    """Runs the tasks of one namespace, wherever the user stands."""

    def __init__(self, namespace: Collection) -> None:
        super().__init__(namespace=namespace, name="cpu-train-stack", binary="./inv", binary_names=["inv"])

    def normalize_argv(self, argv: list[str] | None) -> None:
        super().normalize_argv(argv)
        if self.namespace is not None:
            self.argv = join_names(self.argv, self.namespace.task_names)

    def parse_tasks(self) -> None:
        try:
            super().parse_tasks()
        except ParseError as error:
            raise UsageError(explain(error, self.collection.task_names)) from error
        except ValueError as error:
            raise UsageError(explain_value(error, self.argv)) from error

    def parse_core(self, argv: list[str] | None) -> None:
        self.normalize_argv(argv)
        self.parse_core_args()
        if shell := self.args["print-completion-script"].value:
            print(completion.script(shell, ROOT / "inv"))
            raise Exit
        super().parse_core(argv)

    def parse_core_args(self) -> None:
        try:
            super().parse_core_args()
        except ParseError as error:
            raise UsageError(explain(error, ())) from error
        except ValueError as error:
            raise UsageError(explain_value(error, self.argv)) from error

    def parse_cleanup(self) -> None:
        if self.args.complete.value:
            words = join_names(self.core.remainder.split()[1:], self.collection.task_names)
            completion.print_candidates(words, self.initial_context, self.collection, self._make_parser())
            raise Exit
        try:
            super().parse_cleanup()
        except ParseError as error:  # --help of a task that does not exist
            raise UsageError(explain(error, self.collection.task_names)) from error

    def execute(self) -> None:
        try:
            super().execute()
        except KeyboardInterrupt:
            sys.exit(contract.INTERRUPTED_EXIT_CODE)

    def no_tasks_given(self) -> NoReturn:
        self.list_tasks()
        sys.exit(0)

    def task_list_opener(self, extra: str = "") -> str:
        return f"Tasks (./inv TASK --help shows a task's options){extra}"
