"""What an adaptation is, and what it may know of the run before the script begins."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Callable

from entrypoints.cli import packages

PACKAGES = ("transformers", "accelerate", "evaluate", "datasets", "torch", packages.IPEX)


@dataclass(frozen=True)
class Situation:
    """A script's command line and what runs it. `backend`: of the group; `versions`: of PACKAGES, where there."""

    arguments: Sequence[str]
    versions: Mapping[str, str]
    backend: str
    rank: int = 0
    world_size: int = 1
    said: set[str] = field(default_factory=set)

    def since(self, package: str, version: str) -> bool:
        """Whether the package is installed in that version or a later one."""
        return packages.release(self.versions.get(package)) >= packages.release(version)

    def before(self, package: str, version: str) -> bool:
        """Whether the package is installed in an older version."""
        return package in self.versions and not self.since(package, version)

    def say(self, name: str, line: str) -> None:
        """What an adaptation did: once, by rank 0."""
        if self.rank == 0 and line not in self.said:
            print(f"adapted ({name}): {line}", file=sys.stderr, flush=True)
        self.said.add(line)


@dataclass(frozen=True)
class Verdict:
    """Whether an adaptation would do anything in this situation, and why."""

    applies: bool
    why: str


@dataclass(frozen=True)
class Adaptation:
    """`summary`: what it does, in one line. `install` hooks what it needs; it acts when the script gets there."""

    name: str
    summary: str
    look: Callable[[Situation], Verdict]
    install: Callable[[Situation], None]
