"""YAML that its readers understand as it was meant: Docker Compose and Kubernetes read version 1.2.

PyYAML writes version 1.1, in which `1e-3` and `0o17` are texts that need no quotes. In 1.2 they are numbers, and a
command line may not hold numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import yaml

_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$")
_INTEGER = re.compile(r"0o[0-7]+$")


class _Dumper(yaml.SafeDumper):
    """Writes what occurs twice twice: nobody reads anchors."""

    def ignore_aliases(self, _data: object) -> bool:
        return True


_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+.0123456789"))
_Dumper.add_implicit_resolver("tag:yaml.org,2002:int", _INTEGER, ["0"])


def render(documents: Iterable[object], width: int = 1000) -> str:
    """One document or several, keys in their order."""
    made = list(documents)
    return yaml.dump_all(made, Dumper=_Dumper, sort_keys=False, width=width, explicit_start=len(made) > 1)
