"""One row of the version matrix, and its variants: the default index's torch, or a user's own versions."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType

from tooling.basis.identity import IDENTITY
from tooling.pins.advisories import Advisory

INTEL_BINDINGS = "oneccl-bind-pt"
PYTORCH_CPU = "+cpu"
DEFAULT_TORCH_SUFFIX = "-default-torch"


@dataclass(frozen=True)
class DebianRelease:
    """A Debian release as far as an image depends on it. `eol`: the end of Debian's long-term support."""

    number: int
    suite: str
    python_full: str
    glibc_minor: int
    eol: str

    @property
    def python(self) -> str:
        """The Python's version as a row names it, 3.11 for example."""
        return self.python_full.rpartition(".")[0]


# Source: Debian's package versions of python3 and libc6 in each release; the LTS schedule of Debian's wiki.
DEBIAN_RELEASES = {
    11: DebianRelease(11, "bullseye", "3.9.2", 31, "2026-08-31"),
    12: DebianRelease(12, "bookworm", "3.11.2", 36, "2028-06-30"),
    13: DebianRelease(13, "trixie", "3.13.5", 41, "2030-06-30"),
}


class Ccl(StrEnum):
    """Where the `ccl` backend comes from: Intel's wheel, this project's own, compiled into the image, or nowhere.

    Without one the process group is gloo.
    """

    INTEL = "intel"
    BINDINGS = "bindings"
    NONE = "none"


class TorchSource(StrEnum):
    """Which build of torch: the row's own (+cpu), or the one of the same version on the default index (CUDA)."""

    ROW = "row"
    DEFAULT = "default"


@dataclass(frozen=True)
class Source:
    """Where pip searches for a wheel after the host's own indexes: a package index, or a page of links."""

    url: str
    is_page: bool = False

    @property
    def extra_option(self) -> list[str]:
        """pip's options for this source and the host's own."""
        return ["--find-links" if self.is_page else "--extra-index-url", self.url]

    @property
    def only_option(self) -> list[str]:
        """pip's options for this source without the host's indexes."""
        return ["--no-index", "--find-links", self.url] if self.is_page else ["--index-url", self.url]


@dataclass(frozen=True)
class Pin:
    """One row of the matrix. `packages` maps a distribution's name to its exact version.

    `base`: the official image by digest, empty where mmdebstrap is the only way.
    `build_packages`: what the ccl backend is compiled from: fetched like the others, but not installed.
    `oneccl`: the version of oneCCL that is inside the ccl backend.
    `sources`: for packages that the host's indexes may lack.
    `own`: a user's own combination, which has no row.
    `known_advisories`: for any versions; `advisories`: those that apply to this pin's versions.
    """

    name: str
    debian: DebianRelease
    python: str
    tcmalloc_package: str
    ccl: Ccl
    oneccl: str
    packages: Mapping[str, str]
    build_packages: Mapping[str, str]
    sources: Mapping[str, Source]
    base: str = ""
    torch_source: TorchSource = TorchSource.ROW
    own: bool = False
    known_advisories: tuple[Advisory, ...] = ()

    @property
    def requirements(self) -> tuple[str, ...]:
        """The row's own packages as pip requirements, sorted by name."""
        return _requirements(self.packages)

    @property
    def build_requirements(self) -> tuple[str, ...]:
        """The same for `build_packages`."""
        return _requirements(self.build_packages)

    @property
    def advisories(self) -> tuple[Advisory, ...]:
        """The advisories that apply to the versions in `packages`."""
        return tuple(advisory for advisory in self.known_advisories if advisory.applies_to(self.packages))

    @property
    def image(self) -> str:
        """The local tag of this checkout's image of the pin. No other checkout moves this tag."""
        return f"{self.shared_tag}-{IDENTITY}"

    @property
    def shared_tag(self) -> str:
        """A tag without the checkout's identity, for commands that users type. The last ./inv build moves it."""
        return f"cpu-train-stack:{self.name}"

    @property
    def facts_sha256(self) -> str:
        """The hash of the chosen versions: a proof is valid for one hash only."""
        facts = [self.python, self.debian.number, self.ccl, *self.requirements, *self.build_requirements]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()

    def with_default_torch(self) -> Pin:
        """The same row with the default index's build of its torch.

        Intel's bindings are linked against the CPU build and left out; this project's backend needs a newer torch
        than theirs, so the group is gloo.
        """
        pin = self._without_intel() if self.ccl is Ccl.INTEL else self
        torch = self.packages["torch"].removesuffix(PYTORCH_CPU)
        return replace(
            pin,
            name=self.name + DEFAULT_TORCH_SUFFIX,
            packages=MappingProxyType({**pin.packages, "torch": torch}),
            sources=MappingProxyType({name: own for name, own in pin.sources.items() if name != "torch"}),
            torch_source=TorchSource.DEFAULT,
        )

    def _without_intel(self) -> Pin:
        packages, sources = dict(self.packages), dict(self.sources)
        packages.pop(INTEL_BINDINGS, None)
        sources.pop(INTEL_BINDINGS, None)
        return replace(
            self,
            ccl=Ccl.NONE,
            oneccl="",
            packages=MappingProxyType(packages),
            sources=MappingProxyType(sources),
        )

    def with_versions(self, versions: Mapping[str, str]) -> Pin:
        """A user's own combination: the row with other versions, under a name that is theirs alone."""
        packages, build_packages = dict(self.packages), dict(self.build_packages)
        for name, version in versions.items():
            (build_packages if name in build_packages else packages)[name] = version
        changed = replace(
            self,
            packages=MappingProxyType(packages),
            build_packages=MappingProxyType(build_packages),
            own=True,
        )
        return replace(changed, name=f"{self.name}-own-{changed.facts_sha256[:8]}")


def _requirements(packages: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(f"{name}=={version}" for name, version in sorted(packages.items()))
