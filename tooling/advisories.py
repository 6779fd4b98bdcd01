"""What is published against versions of packages. The data is in images/versions.toml."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from packaging.version import Version


@dataclass(frozen=True)
class Range:
    """The affected versions of a package as OSV counts them: from `introduced` up to, but not with, `fixed`.

    None: from the first version, or no fixed version.
    """

    package: str
    introduced: str | None
    fixed: str | None

    def holds(self, version: str) -> bool:
        """Whether `version` is affected."""
        found = Version(version)
        old = self.introduced is not None and found < Version(self.introduced)
        return not old and (self.fixed is None or found < Version(self.fixed))

    def __str__(self) -> str:
        words = [self.package]
        words += [f"from {self.introduced}"] if self.introduced else []
        words += [f"below {self.fixed}"] if self.fixed else []
        return " ".join(words) if len(words) > 1 else f"every version of {self.package}"


@dataclass(frozen=True)
class Advisory:
    """`id`: a CVE or GHSA number, or an issue as OWNER/REPOSITORY#NUMBER. `affected`: all ranges hold together."""

    id: str
    summary: str
    affected: tuple[Range, ...]

    def applies_to(self, packages: Mapping[str, str]) -> bool:
        """Whether these versions are affected. `packages`: version by name."""
        return all(one.package in packages and one.holds(packages[one.package]) for one in self.affected)

    @property
    def fix(self) -> str:
        """What to do about it: one package outside of its range is enough."""
        return "use " + " or ".join(
            f"{one.package} {one.fixed} or later" if one.fixed else f"a pin without {one.package}"
            for one in self.affected
        )

    def __str__(self) -> str:
        return f"{self.id}: {self.summary} ({' with '.join(map(str, self.affected))})"


def document(advisories: Iterable[Advisory]) -> str:
    """What the image's doctor reads, as JSON."""
    return json.dumps([{"detail": str(advisory), "fix": advisory.fix} for advisory in advisories])
