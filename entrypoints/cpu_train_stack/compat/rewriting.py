"""Replace or drop old flags on a command line, in a configuration file and in a call. `flags` lists them."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.files import parse_json
from cpu_train_stack.compat.flags import OldFlag, is_true


@dataclass(frozen=True)
class Found:
    """An old flag on the command line, and its value: `true` for a flag without a value."""

    flag: OldFlag
    value: str

    @property
    def is_true(self) -> bool:
        return is_true(self.value)

    def export(self, environ: MutableMapping[str, str]) -> None:
        """Set the environment variable that replaces the flag, unless the user has set it."""
        if self.flag.variable:
            environ.setdefault(self.flag.variable, self.value)


def name_of(argument: str) -> str:
    """`--Use-ipex=true` -> `Use_ipex`; empty if not a long flag."""
    return argument[2:].partition("=")[0].replace("-", "_") if argument.startswith("--") else ""


def rewrite(arguments: Sequence[str], active: Mapping[str, OldFlag]) -> tuple[list[str], list[Found]]:
    """The arguments with the flags in `active` replaced or dropped, and the flags found.

    If the replacement of an old flag is given too, it keeps its value, unless the value is 0. Raises UsageError
    for a value that asks for what no longer exists.
    """
    given: dict[str, Any] = values(arguments)
    kept: list[str] = []
    last: list[str] = []
    objects: dict[str, Any] = {}
    found: list[Found] = []
    rest = list(arguments)
    while rest:
        words = [rest.pop(0)]
        name = name_of(words[0])
        flag = active.get(name)
        _, equals, value = words[0].partition("=")
        # transformers gives a switch that is on by default the flag --no_NAME.
        switched = active.get(name[len("no_") :]) if name.startswith("no_") and not flag else None
        if switched and switched.default is True:
            flag, equals, value = switched, "=", "false"
        if flag and not equals:
            if rest and not rest[0].startswith("--"):
                words.append(rest.pop(0))
            value = words[1] if len(words) > 1 else "true"
        if flag is None or (flag.only and value not in flag.only):
            kept += words
            continue
        flag = flag.resolved(given)
        found.append(Found(flag, value))
        new = _replacement(flag, value, given)
        if new is None:
            continue
        if flag.key:
            objects[str(flag.now)] = given[str(flag.now)] = new
            continue
        # parsers use the last value of a flag that is given twice
        (last if flag.now in given else kept).append(f"--{flag.now}={new}")
    return kept + last + [f"--{name}={json.dumps(value)}" for name, value in objects.items()], found


def _replacement(flag: OldFlag, value: Any, given: Mapping[str, Any]) -> Any:
    """The value of the flag that replaces an old one; None if there is nothing to set. `given`: all flags."""
    flag.check(value)
    if flag.now is None or (flag.key and str(value).lower() == "none"):
        return None
    new = flag.value(str(value)) if flag.value else value
    if flag.key:
        return with_key(given.get(flag.now), flag.key, new)
    if flag.name == "include_inputs_for_metrics" and new and not isinstance(value, str):
        return [*(given.get(flag.now) or ()), new]
    owner = given.get("push_to_hub_organization")
    if flag.name == "push_to_hub_model_id":
        return f"{owner}/{value}" if owner and "/" not in str(value) else value
    if flag.name == "push_to_hub_organization":
        if given.get("push_to_hub_model_id"):
            return None
        return f"{value}/{Path(str(given.get('output_dir') or 'trainer_output')).name}"
    return new


def with_key(config: Any, key: str, value: Any) -> Any:
    """A copy of an object of the configuration with one more value. `config`: also JSON or a JSON file's path."""
    if isinstance(config, str):
        try:
            config = parse_json(config if config.startswith("{") else Path(config).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UsageError(f"{config!r} is neither a JSON object nor a JSON file ({error})") from error
    if config is None or isinstance(config, Mapping):
        return {key: value, **(config or {})}
    changed = copy.copy(config)
    setattr(changed, key, value)
    return changed


def values(arguments: Sequence[str]) -> dict[str, Any]:
    """The value of each flag by its name; `true` for a flag without a value."""
    found = {}
    for word, following in zip(arguments, [*arguments[1:], "--"]):
        _, equals, value = word.partition("=")
        found[name_of(word)] = value if equals else "true" if following.startswith("--") else following
    return found


def rewrite_fields(values: Mapping[str, Any], active: Mapping[str, OldFlag]) -> tuple[dict[str, Any], list[Found]]:
    """`rewrite` for the fields of a configuration file or a call."""
    kept: dict[str, Any] = {name: value for name, value in values.items() if name not in active}
    found: list[Found] = []
    for name in (name for name in values if name in active):
        flag, value = active[name].resolved(kept), values[name]
        if flag.only and str(value) not in flag.only:
            kept[name] = value
            continue
        if value is None:
            found.append(Found(replace(flag, now=None, variable=None, why="it is not set"), "none"))
            continue
        found.append(Found(flag, str(value)))
        new = _replacement(flag, value, {**values, **kept})
        if new is not None:
            kept[str(flag.now)] = new
    return kept, found
