"""Writes and reads YAML for Docker Compose (version 1.2) and kubectl (1.2 with the booleans of 1.1).

PyYAML writes version 1.1, but leaves out quotes that both need: `1e-3`, `0o17`, `0X1F` and `0_9` are numbers for
them, and `y` and `n` are booleans for kubectl. A command and a variable must be strings.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

_FLOAT = re.compile(r"[-+]?(\.[0-9_]+|[0-9][0-9_]*(\.[0-9_]*)?)([eE][-+]?[0-9_]+)?$")
_INTEGER = re.compile(r"[-+]?0[oOxXbB][0-9a-fA-F_]+$")
_BOOLEAN = re.compile(r"[yYnN]$")


class _Dumper(yaml.SafeDumper):
    """Writes repeated values in full, without anchors, which are hard to read."""

    def ignore_aliases(self, _data: object) -> bool:
        return True


_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+.0123456789"))
_Dumper.add_implicit_resolver("tag:yaml.org,2002:int", _INTEGER, list("-+0"))
_Dumper.add_implicit_resolver("tag:yaml.org,2002:bool", _BOOLEAN, list("yYnN"))


def read(path: Path) -> Any:
    """The document that `render` wrote to a file. Raises ValueError for any other text."""
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(" ".join(str(error).split())) from None


def render(documents: Iterable[object], width: int = 1000) -> str:
    """The text of one or several documents. Keys keep their order."""
    listed = list(documents)
    return yaml.dump_all(listed, Dumper=_Dumper, sort_keys=False, width=width, explicit_start=len(listed) > 1)
