"""The command line of ./inv: invoke's parser, with groups, sections, and errors of one line with exit code 2.

tooling.__main__ runs TaskProgram, which parses the command line and calls a task of tooling.cli.tasks_*. The other
functions put errors into words. tooling.cli.options has the declaration of a task's options.
"""

import difflib
import itertools
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from invoke.collection import Collection
from invoke.exceptions import Exit, ParseError
from invoke.parser.argument import Argument
from invoke.parser.context import ParserContext
from invoke.program import Program

from cpu_train_stack import contract
from cpu_train_stack.cli import errors
from tooling.basis.errors import UsageError
from tooling.basis.paths import ROOT, explain_error
from tooling.cli import completion
from tooling.cli.options import Task, command_argv
from tooling.image import recipe

Member = Task | Collection  # a task, or a group of tasks

# The other options of invoke's own have no meaning for these tasks.
_OWN_OPTIONS = ("complete", "help", "list", "print-completion-script", "version")
# What help shows as the value of an option, by type.
_VALUES = {str: "=STRING", int: "=INT", float: "=NUMBER", list: "=STRING"}
_UNKNOWN = re.compile(r"No idea what '(?P<word>.*)' is!")
_NO_VALUE = re.compile(r"Flag .*?Argument: (?P<name>[\w-]+).* needed value")
_NOT_A_NUMBER = re.compile(r"invalid literal for int\(\) with base 10: '(?P<value>.*)'")
_NOT_A_DECIMAL = re.compile(r"could not convert string to float: '(?P<value>.*)'")


def canonical_argv(argv: Sequence[str], groups: Mapping[str, Iterable[str]]) -> list[str]:
    """`argv` in invoke's own terms: `bench train` becomes bench.train; `help` and `bench --help` become --list.

    `groups` maps the name of a group to the names of its tasks.
    """
    own = list(argv[1 : argv.index("--")] if "--" in argv else argv[1:])
    rest = list(argv[1 + len(own) :])
    if own[:1] == ["help"]:
        own = ["--help", *own[1:]] if own[1:] else ["--list"]
    for place, (group, name) in enumerate(itertools.pairwise(own)):
        if name in groups.get(group, ()):
            own[place : place + 2] = [f"{group}.{name}"]
            break
    words = [word for word in own if word not in ("--help", "-h", "--list", "-l")]
    if len(words) == 1 and words[0] in groups:
        own = [f"--list={words[0]}"]
    return [*argv[:1], *own, *rest]


def with_flags(argv: Sequence[str], task: Task) -> list[str]:
    """`compare A B` becomes `compare --folders A --folders B`: a positional argument of invoke has one value."""
    options = {f"--{option.names[0]}": option.takes_value for option in task.get_arguments()}
    found, rest = list(argv[:2]), iter(argv[2:])
    for word in rest:
        found += [word] if word.startswith("-") else [f"--{task.words}", word]
        if options.get(word):
            found += itertools.islice(rest, 1)
    return found


def _typed(name: str) -> str:
    """The name as a user types it: `bench train` for bench.train."""
    return name.replace(".", " ")


def _nearest(word: str, choices: Iterable[str]) -> str:
    names = {name: name for name in choices}
    names |= {name.rpartition(".")[2]: name for name in names if "." in name}  # `train` is close to bench.train
    match = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    return f"; did you mean {_typed(names[match[0]])!r}?" if match else ";"


def _with_dashes(argv: Sequence[str], context: ParserContext, word: str) -> str:
    """The command line with `--` before `word`, which is the first argument that is not an option of the task."""
    for place, (before, found) in enumerate(itertools.pairwise(argv), start=1):
        takes_value = before in context.flags and context.flags[before].takes_value
        if found == word and not takes_value:
            argv = [*argv[:place], "--", *argv[place:]]
            break
    name = str(context.name)
    return shlex.join(["./inv", *argv[1:]]).replace(name, _typed(name), 1)


def _given_twice(argv: Sequence[str], context: ParserContext | None, word: str) -> str | None:
    """The option that `word` follows, if the option was given before; otherwise None."""
    words = [part for text in argv for part in (text.split("=", 1) if text.startswith("--") else [text])]
    for place, (before, found) in enumerate(itertools.pairwise(words)):
        if found == word and context and before in context.flags and before in words[:place]:
            return before
    return None


def needs_dashes(namespace: Collection, context: ParserContext | None, argv: Sequence[str]) -> bool:
    """Whether the task of `context` expects a command after `--`, and `argv` has no `--`."""
    return bool(context and context.name and "--" not in argv and namespace[context.name].takes_command)


def explain_dashes(context: ParserContext, argv: Sequence[str], word: str) -> str:
    """One line for a command that does not follow `--`."""
    return (
        f"{_typed(str(context.name))} expects a command after --, found {word!r} without --: "
        f"run {_with_dashes(argv, context, word)}"
    )


def explain(error: ParseError, argv: Sequence[str], namespace: Collection) -> str:
    """One line for a parse error: what was found, the nearest name, and where the names are shown."""
    task = _typed(error.context.name) if error.context and error.context.name else None
    where = f"./inv {task} --help shows its options" if task else "./inv --list shows the tasks"
    text = " ".join(str(error).split())
    if match := _UNKNOWN.search(text):
        word = match["word"]
        if word.startswith("-"):
            flags = [*error.context.flags, *error.context.inverse_flags] if error.context else []
            return f"{task or './inv'} has no option {word!r}{_nearest(word, flags)} {where}"
        if flag := _given_twice(argv, error.context, word):
            return f"{task}: {flag} is given twice, expected once; {where}"
        if error.context and needs_dashes(namespace, error.context, argv):
            return explain_dashes(error.context, argv, word)
        if group := namespace.collections.get(word):
            following = argv[argv.index(word) + 1 :]
            if not following:
                return f"{word} is a group of tasks: ./inv {word} shows its tasks"
            nearest = _nearest(following[0], group.task_names)
            return f"{word} has no task {following[0]!r}{nearest} ./inv {word} shows its tasks"
        return f"unknown task {word!r}{_nearest(word, namespace.task_names)} ./inv --list shows the tasks"
    if match := _NO_VALUE.search(text):
        return f"{task or './inv'}: --{match['name']} needs a value; {where}"
    return f"{text}; {where}"


def explain_value(error: ValueError, argv: Sequence[str]) -> str:
    """One line for a value of the wrong type. The option's name is found in `argv`: invoke's error lacks it."""
    for pattern, expected in ((_NOT_A_NUMBER, "an integer"), (_NOT_A_DECIMAL, "a number")):
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


def _summary(member: Member) -> str:
    """The first line of the docstring. Without the full stop for a group, because its tasks follow."""
    line = (member.__doc__ or "").partition("\n")[0]
    return line.removesuffix(".") if isinstance(member, Collection) else line


class TaskProgram(Program):
    """The program ./inv: runs the tasks in `sections`."""

    def __init__(self, sections: Mapping[str, Sequence[Member]]) -> None:
        namespace = Collection(*itertools.chain(*sections.values()))
        super().__init__(namespace=namespace, name="cpu-train-stack", binary="./inv", binary_names=["inv"])
        self.collection = namespace  # invoke sets it later, and errors in ./inv's own options need it
        self._sections = sections
        self._tasks = namespace.tasks
        self._groups = {name: group.task_names for name, group in namespace.collections.items()}

    def normalize_argv(self, argv: list[str] | None) -> None:
        super().normalize_argv(argv)
        for word in self.argv:
            if word.encode(errors="replace").decode() != word:
                raise UsageError(f"found the argument {word!r}, expected text in UTF-8")
        self.argv = canonical_argv(self.argv, self._groups)
        task = self._tasks.get(self.argv[1]) if len(self.argv) > 1 else None
        if isinstance(task, Task) and task.words:
            self.argv = with_flags(self.argv, task)

    def core_args(self) -> list[Argument]:
        return [argument for argument in super().core_args() if argument.name in _OWN_OPTIONS]

    def parse_core(self, argv: list[str] | None) -> None:
        self.normalize_argv(argv)
        self.parse_core_args()
        if self.args.version.value:
            self.print_version()
            raise Exit
        if shell := self.args["print-completion-script"].value:
            print(completion.script(shell, ROOT / "inv"))
            raise Exit

    def print_version(self) -> None:
        print(f"{self.name} {recipe.project_version()}")

    def update_config(self, merge: bool = True) -> None:
        """Nothing: the options that this would read are not among ./inv's."""

    def parse_core_args(self) -> None:
        with self._explained():
            super().parse_core_args()

    def parse_tasks(self) -> None:
        with self._explained():
            super().parse_tasks()
        # `up train` is a parse error. `up launch` is not, because launch is a task too.
        for context, following in itertools.pairwise(self.tasks):
            if needs_dashes(self.collection, context, self.argv):
                raise UsageError(explain_dashes(context, self.argv, str(following.name)))
        names = [str(context.name) for context in self.tasks]
        if names and command_argv(self.argv) and not any(self.collection[name].takes_command for name in names):
            raise UsageError(f"{_typed(names[-1])} takes no command: leave out -- and what follows it")

    def parse_cleanup(self) -> None:
        if self.args.complete.value:
            typed = canonical_argv(self.core.remainder.split(), self._groups)
            completion.print_candidates(typed[1:], self.initial_context, self.collection, self._make_parser())
            raise Exit
        task, group = self.args.help.value, self.args.list.value
        if isinstance(task, str):
            if task not in self.parser.contexts:
                with self._explained():
                    raise ParseError(f"No idea what {task!r} is!")
            self.print_task_help(task)
            raise Exit
        if isinstance(group, str):
            if group not in self._groups:
                raise UsageError(f"--list {group!r}: expected a group of tasks: {', '.join(self._groups)}")
            self.list_root, self.scoped_collection = group, self.collection.subcollection_from_path(group)
        if task or group or not self.tasks:
            self.list_tasks()
            raise Exit

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except ParseError as error:
            raise UsageError(explain(error, self.argv, self.collection)) from error
        except ValueError as error:
            raise UsageError(explain_value(error, self.argv)) from error

    def execute(self) -> None:
        try:
            super().execute()
        except KeyboardInterrupt:
            sys.exit(contract.INTERRUPTED_EXIT_CODE)
        except errors.UsageError as error:  # of a module that is also in the image
            raise UsageError(str(error)) from error
        except OSError as error:
            if line := explain_error(error):
                raise UsageError(line) from error
            raise
        except subprocess.TimeoutExpired as error:
            command = error.cmd if isinstance(error.cmd, str) else shlex.join(map(str, error.cmd[:2]))
            raise UsageError(
                f"{command} did not end within {error.timeout:.0f} s: check the engine (./inv doctor), and "
                "run the same command again"
            ) from error

    def list_tasks(self) -> None:
        """Print all sections, or the tasks of the group in --list=GROUP."""
        sections, prefix = self._sections, ""
        if self.list_root:
            group = self.scoped_collection
            sections, prefix = {_summary(group): [*group.tasks.values()]}, f"{self.list_root} "
        print(f"Usage: ./inv {prefix}TASK [options]; ./inv {prefix}TASK --help shows the options of a task")
        rows = {
            heading: [(prefix + self.collection.transform(str(member.name)), member) for member in members]
            for heading, members in sections.items()
        }
        width = max(len(name) for name, _ in itertools.chain(*rows.values()))
        for heading, members in rows.items():
            print(f"\n{heading}:")
            for name, member in members:
                tasks = f": {', '.join(member.task_names)}" if isinstance(member, Collection) else ""
                print(f"  {name:<{width}}  {_summary(member)}{tasks}")

    def print_task_help(self, name: str) -> None:
        """Print the usage, docstring and options of a task."""
        task = self.collection[name]
        command = " -- COMMAND" if task.takes_command else f" {task.words.upper()}" if task.words else ""
        print(f"Usage: ./inv {_typed(name)} [options]{command}\n\n{task.__doc__}\n")
        if options := sorted(task.get_arguments(), key=lambda option: option.names):
            print("Options:")
            self.print_columns(
                [(f"--{option.names[0]}{_VALUES.get(option.kind, '')}", option.help) for option in options]
            )
