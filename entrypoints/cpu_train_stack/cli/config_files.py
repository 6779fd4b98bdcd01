"""Configuration files (`train config.yaml`): one `key: value` per line; the keys are flags. Torch-free.

The flags' own parser converts the values from their text: `eval_strategy: no` and `learning_rate: 5e-5`, which
YAML would read as false and as a string, mean the same as on a command line.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cpu_train_stack.cli.errors import UsageError, path_hint

SUFFIXES = (".yaml", ".yml", ".json")
# An escaped pair of surrogates in JSON.
_PAIR = re.compile(r"(?i)\\ud[89ab][0-9a-f]{2}\\ud[c-f][0-9a-f]{2}")
# Aliases of aliases would fill the memory.
_MOST_VALUES = 10_000
# YAML's null: the flag keeps its default.
_NOTHING = frozenset({"", "~", "null", "Null", "NULL"})


@dataclass(frozen=True)
class ConfigEntry:
    """One key of a file. `where`: the file and line, for messages. `argv`: the key and value as a flag."""

    key: str
    where: str
    argv: tuple[str, ...]


def split(argv: Sequence[str]) -> tuple[str | None, list[str]]:
    """The config file, which precedes all flags, or None; and the flags."""
    if argv and not argv[0].startswith("-") and argv[0].endswith(SUFFIXES):
        return argv[0], list(argv[1:])
    return None, list(argv)


def read(name: str) -> list[ConfigEntry]:
    """The entries of a file that have a value. Raises UsageError with the line number."""
    import yaml

    try:
        text = Path(name).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8"
        raise UsageError(f"config file '{name}' cannot be read ({reason}): {path_hint(name)}") from error
    if name.endswith(".json"):
        text = _as_yaml(text)
    try:
        document: Any = yaml.compose(text, Loader=yaml.SafeLoader)
        if document is None:
            return []
        if not isinstance(document, yaml.MappingNode):
            raise UsageError(f"config file '{name}': found {document.id}, expected one 'key: value' per line")
        return _entries(name, document, yaml)
    except RecursionError as error:
        raise UsageError(f"config file '{name}' is nested too deeply, expected 'key: value'") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "invalid YAML"
        raise UsageError(f"config file '{name}'{where}: {problem}; expected 'key: value'") from error


def value_of(name: str, key: str) -> str | None:
    """The text of one key's value. None if the key is missing, or if the file is invalid: `read` raises later."""
    try:
        entries = read(name)
    except UsageError:
        return None
    return next((entry.argv[1] for entry in entries if entry.key == key and len(entry.argv) > 1), None)


def dump(key: str, value: Any) -> str:
    """The line of a configuration file for this key and value."""
    import yaml

    plain = getattr(value, "value", value)  # Hugging Face's enumerations
    if isinstance(plain, str) and "\n" in plain:
        return f"{key}: {json.dumps(plain)}"
    text: str = yaml.safe_dump(plain, default_flow_style=True, allow_unicode=True, width=1 << 20)
    return f"{key}: {text.partition(chr(10))[0]}"  # safe_dump adds the document's end after a scalar


def _as_yaml(text: str) -> str:
    """JSON for PyYAML, which refuses tabs between values, and reads a pair of surrogates as two characters."""
    return _PAIR.sub(lambda pair: str(json.loads(f'"{pair[0]}"')), text.replace("\t", " "))


def _entries(name: str, document: Any, yaml: Any) -> list[ConfigEntry]:
    entries: list[ConfigEntry] = []
    seen: dict[str, int] = {}
    for key_node, value_node in document.value:
        line = key_node.start_mark.line + 1
        where = f"config file '{name}' line {line}"
        if not isinstance(key_node, yaml.ScalarNode):
            raise UsageError(f"{where}: the key is a {key_node.id}, expected the name of a flag")
        key = key_node.value.lstrip("-").replace("-", "_")
        if key in seen:
            raise UsageError(f"{where}: '{key}' is repeated, first in line {seen[key]}: remove one of them")
        seen[key] = line
        if _size(value_node, {}) > _MOST_VALUES:
            raise UsageError(f"{where}: '{key}' has more than {_MOST_VALUES} values with its aliases: write fewer")
        words = _words(value_node, where, key, yaml)
        if words:
            entries.append(ConfigEntry(key, where, (f"--{key}", *words)))
    return entries


def _size(node: Any, sizes: dict[int, int]) -> int:
    """The number of values in a node with its aliases written out. `sizes`: of the nodes seen so far, by id."""
    if id(node) not in sizes:
        sizes[id(node)] = 1  # for a cycle, which `_words` reports
        parts = node.value if isinstance(node.value, list) else ()
        flat = [part for item in parts for part in (item if isinstance(item, tuple) else (item,))]
        sizes[id(node)] = 1 + sum(_size(part, sizes) for part in flat)
    return sizes[id(node)]


def _value(node: Any, yaml: Any) -> Any:
    """A node as JSON. JSON's numbers stay numbers: to PyYAML, 1e-6 is text. Booleans and nulls are YAML's."""
    if isinstance(node, yaml.MappingNode):
        yaml.SafeLoader("").flatten_mapping(node)  # <<: *other
        return {key.value: _value(value, yaml) for key, value in node.value}
    if isinstance(node, yaml.SequenceNode):
        return [_value(item, yaml) for item in node.value]
    if node.tag.endswith((":bool", ":float", ":null")):
        return yaml.SafeLoader("").construct_object(node)
    with contextlib.suppress(ValueError):
        if node.tag.endswith(":int") and node.value.isascii():
            return int(node.value, 0)  # 1_000, 0x10. 010 stays text
        if node.style is None:
            return json.loads(node.value)
    return node.value


def _words(node: Any, where: str, key: str, yaml: Any) -> list[str]:
    """The arguments that follow the flag. Flags take a mapping as JSON."""
    if isinstance(node, yaml.ScalarNode):
        quoted = node.style is not None
        return [] if node.value in _NOTHING and not quoted else [node.value]
    if isinstance(node, yaml.SequenceNode):
        if all(isinstance(item, yaml.ScalarNode) for item in node.value):
            return [item.value for item in node.value]
        raise UsageError(f"{where}: '{key}' is a list of lists or mappings, expected a list of values")
    try:
        return [json.dumps(_value(node, yaml))]
    except (TypeError, ValueError, LookupError, RecursionError) as error:  # !!float abc, !!bool 3, a cycle
        raise UsageError(
            f"{where}: '{key}' cannot be converted to JSON ({error}), which its flag expects"
        ) from error
