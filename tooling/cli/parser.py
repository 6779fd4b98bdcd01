"""The command line of ./inv: the tasks of /tasks.py, with the nearest name for a mistake, and help by section.

Plain invoke runs the same tasks. ./inv also takes `bench train` for bench.train, and arguments without a flag
where a task takes them (`compare A B`). tooling.cli.options has the declaration of a task's options.
"""

import copy
import difflib
import itertools
import shlex
from collections.abc import Iterable, Mapping, Sequence

from invoke.collection import Collection
from invoke.executor import Executor
from invoke.parser.argument import Argument
from invoke.parser.context import ParserContext
from invoke.program import Program

from cpu_train_stack.cli.errors import UsageError
from tooling.basis.paths import ROOT
from tooling.cli import completion
from tooling.cli.options import TaskSignature, command_argv
from tooling.image import recipe

Member = TaskSignature | Collection  # a task, or a group of tasks

# What help shows as the value of an option, by type.
_VALUES = {str: "=STRING", int: "=INT", float: "=NUMBER", list: "=STRING"}


def main(argv: Sequence[str], sections: Mapping[str, Sequence[Member]]) -> None:
    """Run the tasks that `argv` names, or print what it asks for. Raises invoke's Exit."""
    tasks, words = Collection(*itertools.chain(*sections.values())), list(argv[1:])
    line = CommandLine(tasks, words)
    if words[:1] == ["--complete"]:
        print("\n".join(completion.candidates(words[3:], tasks, line.own)))
        return
    line.read()
    own, last = line.own.args, str(line.calls[-1].name) if line.calls else ""
    if own["version"].value:
        print(f"cpu-train-stack {recipe.project_version()}")
    elif shell := own["print-completion-script"].value:
        print(completion.script(shell, ROOT / "inv"))
    elif own["list"].value and last:
        raise UsageError(f"--list {_typed(last)!r}: expected a group of tasks: {', '.join(tasks.collections)}")
    elif own["help"].value and last:
        _print_help(last, tasks[last])
    elif line.group:
        group = tasks.collections[line.group]
        _print_tasks({_summary(group): [*group.tasks.values()]}, f"{line.group} ")
    elif not last:
        _print_tasks(sections)
    elif command_argv(argv) and not any(tasks[call.name].takes_command for call in line.calls):
        raise UsageError(f"{_typed(last)} takes no command: leave out -- and what follows it")
    else:
        Executor(tasks).execute(*line.calls)


class CommandLine:
    """The arguments of ./inv: `read` raises UsageError, one line with what is wrong and the nearest name.

    `own`: the options of ./inv itself. `calls`: the tasks with their options. `group`: a group without a task.
    """

    def __init__(self, tasks: Collection, words: Sequence[str]) -> None:
        flags = [Argument(names=names, kind=bool) for names in (("help", "h"), ("list", "l"), ("version", "V"))]
        self.own = ParserContext(args=[*flags, Argument(name="print-completion-script")])
        self.calls: list[ParserContext] = []
        self.group = ""
        self._tasks, self._words = tasks, words
        self._contexts = {str(context.name): context for context in tasks.to_contexts()}
        self._rest = [*itertools.takewhile(lambda word: word != "--", words)]

    def read(self) -> None:
        """Fill in `own`, `calls` and `group`."""
        if self._rest[:1] == ["help"]:
            self._rest[0] = "--help"
        while self._rest:
            word = self._rest.pop(0)
            (self._read_option if word.startswith("-") else self._read_word)(word)

    def _read_option(self, word: str) -> None:
        context = self.calls[-1] if self.calls else self.own
        name = _typed(context.name) if context.name else "./inv"
        where = f"./inv {name} --help shows its options" if context.name else "./inv --list shows the tasks"
        flag, equals, value = word.partition("=")
        flags = context.flags if flag in context.flags else self.own.flags
        if flag not in flags:
            raise UsageError(f"{name} has no option {flag!r}{_nearest(flag, context.flags)} {where}")
        option = flags[flag]
        if not option.takes_value:
            if equals and flag not in ("--help", "--list"):
                raise UsageError(f"{name}: {flag} takes no value, found {value!r}; {where}")
            option.set_value(True)
            self._rest[:0] = [value] if equals else []  # --list=GROUP, --help=TASK
            return
        if option.got_value and option.kind is not list:
            raise UsageError(f"{name}: {flag} is given twice, expected once; {where}")
        if not equals and (not self._rest or self._rest[0].partition("=")[0] in {*context.flags, *self.own.flags}):
            raise UsageError(f"{name}: {flag} needs a value; {where}")
        option.set_value(value if equals else self._rest.pop(0))

    def _read_word(self, word: str) -> None:
        task = self._tasks[self.calls[-1].name] if self.calls else None
        if task and task.words:
            self.calls[-1].args[task.words].set_value(word)
            return
        if task and task.takes_command and "--" not in self._words:
            place = len(self._words) - len(self._rest) - 1
            corrected = shlex.join(["./inv", *self._words[:place], "--", *self._words[place:]]).replace(
                "\n", "\\n"
            )
            name = _typed(self.calls[-1].name)
            raise UsageError(f"{name} expects a command after --, found {word!r} without --: run {corrected}")
        group = self._tasks.collections.get(word)
        following = self._rest[0] if self._rest and not self._rest[0].startswith("-") else ""
        if group and following in group.task_names:
            word = f"{word}.{self._rest.pop(0)}"
        if word in self._contexts:
            self.calls.append(copy.deepcopy(self._contexts[word]))
        elif group and following:
            nearest = _nearest(following, group.task_names)
            raise UsageError(f"{word} has no task {following!r}{nearest} ./inv {word} shows its tasks")
        elif group and not self.calls:
            self.group = word
        elif group:
            raise UsageError(f"{word} is a group of tasks: ./inv {word} shows its tasks")
        else:
            raise UsageError(f"unknown task {word!r}{_nearest(word, self._contexts)} ./inv --list shows the tasks")


def _typed(name: str | None) -> str:
    """The name as a user types it: `bench train` for bench.train."""
    return str(name).replace(".", " ")


def _nearest(word: str, choices: Iterable[str]) -> str:
    names = {name: name for name in choices}
    names |= {name.rpartition(".")[2]: name for name in names if "." in name}  # `train` is close to bench.train
    match = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    return f"; did you mean {_typed(names[match[0]])!r}?" if match else ";"


def _summary(member: Member) -> str:
    """The first line of the docstring. Without the full stop for a group, because its tasks follow."""
    line = (member.__doc__ or "").partition("\n")[0]
    return line.removesuffix(".") if isinstance(member, Collection) else line


def _print_tasks(sections: Mapping[str, Sequence[Member]], prefix: str = "") -> None:
    """All sections, or the tasks of the group in `prefix`."""
    print(f"Usage: ./inv {prefix}TASK [options]; ./inv {prefix}TASK --help shows the options of a task")
    rows = {
        heading: [(prefix + Collection().transform(str(member.name)), member) for member in members]
        for heading, members in sections.items()
    }
    width = max(len(name) for name, _ in itertools.chain(*rows.values()))
    for heading, members in rows.items():
        print(f"\n{heading}:")
        for name, member in members:
            tasks = f": {', '.join(member.task_names)}" if isinstance(member, Collection) else ""
            print(f"  {name:<{width}}  {_summary(member)}{tasks}")


def _print_help(name: str, task: TaskSignature) -> None:
    """The usage, docstring and options of a task."""
    command = " -- COMMAND" if task.takes_command else f" {task.words.upper()}" if task.words else ""
    print(f"Usage: ./inv {_typed(name)} [options]{command}\n\n{task.__doc__}\n")
    if options := sorted(task.get_arguments(), key=lambda option: option.names):
        print("Options:")
        Program().print_columns(
            [(f"--{option.names[0]}{_VALUES.get(option.kind, '')}", option.help) for option in options]
        )
