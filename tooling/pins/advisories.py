"""Security advisories for versions of packages. The data is in images/versions.toml."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from packaging.version import Version


@dataclass(frozen=True)
class Range:
    """The affected versions of a package, as in OSV: from `introduced` up to, but excluding, `fixed`.

    `introduced` is None: every version before `fixed` is affected. `fixed` is None: no version is fixed.
    """

    package: str
    introduced: str | None
    fixed: str | None

    def includes(self, version: str) -> bool:
        """Whether `version` is affected."""
        found = Version(version)
        reached = self.introduced is None or found >= Version(self.introduced)
        return reached and (self.fixed is None or found < Version(self.fixed))

    def __str__(self) -> str:
        words = [self.package]
        words += [f"from {self.introduced}"] if self.introduced else []
        words += [f"below {self.fixed}"] if self.fixed else []
        return " ".join(words) if len(words) > 1 else f"every version of {self.package}"


@dataclass(frozen=True)
class Advisory:
    """`id`: a CVE or GHSA number, or an issue as OWNER/REPOSITORY#NUMBER.

    A pin is affected if all ranges in `affected` include its versions.
    """

    id: str
    summary: str
    affected: tuple[Range, ...]

    def applies_to(self, packages: Mapping[str, str]) -> bool:
        """Whether a pin is affected. `packages`: its versions by name."""
        return all(one.package in packages and one.includes(packages[one.package]) for one in self.affected)

    @property
    def fix(self) -> str:
        """The fix. It is enough if one package is outside of its range."""
        return "use " + " or ".join(
            f"{one.package} {one.fixed} or later" if one.fixed else f"a pin without {one.package}"
            for one in self.affected
        )

    def __str__(self) -> str:
        return f"{self.id}: {self.summary} ({' with '.join(map(str, self.affected))})"


def document(advisories: Iterable[Advisory]) -> str:
    """The JSON document that the doctor in the image reads."""
    return json.dumps([{"detail": str(advisory), "fix": advisory.fix} for advisory in advisories])
