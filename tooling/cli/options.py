"""Tasks of invoke whose command-line options follow from type hints.

`nodes: Annotated[int, "containers to start"] = 2` declares the option --nodes with its type, help and default. A
parameter whose type is a dataclass stands for the options that the dataclass's fields declare; the dataclass
checks their values. A parameter or field named `command` receives the arguments after `--`. An underscore at the
end of a name is left out of the option: `with_` declares --with.

Help shows a default unless it is empty or 0: then the help text says what happens without the option.
"""

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from functools import partial
from types import NoneType
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

from invoke import tasks
from invoke.context import Context
from invoke.parser.argument import Argument

from cpu_train_stack.cli.errors import check_all
from cpu_train_stack.cli.options import NO_DASH
from tooling.cli.process import bad_usage, guarded

_COMMAND = "command"
_EXPECTED = {int: "an integer", float: "a number"}


class _Parameter(NamedTuple):
    """A parameter of a function or a field of a dataclass. `help` is empty if it is not an option."""

    name: str
    kind: Any
    help: str
    default: Any


def command_argv(argv: Sequence[str] | None = None) -> list[str]:
    """The arguments after the first `--`, as typed: invoke's Context.remainder loses their quoting."""
    argv = sys.argv if argv is None else argv
    return list(argv[argv.index("--") + 1 :]) if "--" in argv else []


class Option(Argument):
    """An option of a task. A value of another type ends the command with one line that names the option."""

    def set_value(self, value: Any, cast: bool = True) -> None:
        flag = self.names[0]
        if value == "" and self.kind in (str, list):  # an unset variable in --data "$DATA"
            raise bad_usage(f"--{flag} is empty, expected a value: check the variable, or leave the option out")
        if value == "-":
            raise bad_usage(f"--{flag}: {NO_DASH}")
        try:
            if self.kind in _EXPECTED and not str(value).isascii():  # int() also reads the digits of other scripts
                raise ValueError
            super().set_value(value, cast)
        except ValueError:
            raise bad_usage(f"--{flag} expects {_EXPECTED[self.kind]}, found {value!r}") from None


class TaskSignature(tasks.Task[Callable[..., None]]):
    """A task of a function whose parameters declare the options.

    `words`: the parameter that receives the arguments that are not options, under ./inv; its type is
    tuple[str, ...].
    """

    def __init__(self, body: Callable[..., None], *, words: str = "", **settings: Any) -> None:
        super().__init__(body, positional=(), **settings)
        declared = list(_declared(body))
        self.words = words
        self.takes_command = any(parameter.name == _COMMAND for parameter in declared)
        self._options = [parameter for parameter in declared if parameter.name != _COMMAND]

    def __call__(self, *_context: Context, **values: Any) -> Any:
        with guarded():
            return _call(self.body, values)

    def get_arguments(self, ignore_unknown_help: bool | None = None) -> list[Argument]:  # noqa: ARG002 - invoke's
        """The options for invoke's parser."""
        return [_argument(option) for option in self._options]


def task(*body: Callable[..., None], **settings: Any) -> Any:
    """invoke's decorator @task, for a function whose parameters declare the options. `settings`: see Task."""
    return tasks.task(*body, klass=TaskSignature, **settings)


def _parameters(target: Callable[..., object]) -> Iterator[_Parameter]:
    hints = get_type_hints(target, include_extras=True)
    for name, parameter in inspect.signature(target).parameters.items():
        kind, *texts = get_args(hints[name]) if get_origin(hints[name]) is Annotated else [hints[name]]
        default = None if parameter.default is parameter.empty else parameter.default
        yield _Parameter(name, kind, texts[0] if texts else "", default)


def _declared(target: Callable[..., object]) -> Iterator[_Parameter]:
    """The options and `command`, including those of dataclasses."""
    for parameter in _parameters(target):
        if isinstance(parameter.kind, type) and is_dataclass(parameter.kind):
            yield from _declared(parameter.kind)
        elif parameter.help or parameter.name == _COMMAND:
            yield parameter


def _call(target: Callable[..., object], values: Mapping[str, Any]) -> object:
    """Calls a function or a dataclass with the values of its options.

    Raises UsageError, one line with the mistakes of all its dataclasses.
    """
    arguments: dict[str, Any] = {}

    def make(name: str, kind: Callable[..., object]) -> None:
        arguments[name] = _call(kind, values)

    parameters = [*_parameters(target)]
    check_all(
        partial(make, parameter.name, parameter.kind)
        for parameter in parameters
        if isinstance(parameter.kind, type) and is_dataclass(parameter.kind)
    )
    for parameter in parameters:
        if parameter.name in arguments:
            continue
        if parameter.name == _COMMAND:
            arguments[parameter.name] = tuple(command_argv())
        elif parameter.help:
            value = values[parameter.name]
            arguments[parameter.name] = tuple(value) if isinstance(value, list) else value
    return target(**arguments)


def _argument(option: _Parameter) -> Option:
    kind = list if get_origin(option.kind) is tuple else option.kind
    if NoneType in get_args(kind):  # int | None: int
        kind = next(member for member in get_args(kind) if member is not NoneType)
    shown = option.default and kind not in (bool, list) and "default:" not in option.help
    return Option(
        name=option.name.rstrip("_").replace("_", "-"),
        attr_name=option.name if "_" in option.name else None,
        kind=kind,
        default=None if kind is list else option.default,
        help=f"{option.help} (default: {option.default})" if shown else option.help,
    )
