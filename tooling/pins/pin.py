"""One row of the version matrix, and its variants: the default index's torch, or a user's own versions."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from enum import StrEnum
from types import MappingProxyType

from tooling.basis.identity import IDENTITY
from tooling.pins.added import NOTHING, Added
from tooling.pins.advisories import Advisory

INTEL_BINDINGS = "oneccl-bind-pt"
IPEX = "intel-extension-for-pytorch"
ONECCL = "oneccl-devel"
REQUIRED_PACKAGES = (
    "torch",
    "transformers",
    "datasets",
    "tokenizers",
    "numpy",
    "intel-openmp",
    "impi-rt",
    "scikit-learn",
    "torchmetrics",
    "psutil",
)
OPTIONAL_PACKAGES = (
    "accelerate",
    "evaluate",
    "peft",
    "protobuf",
    "safetensors",
    "sentencepiece",
    "tensorboard",
    IPEX,
    INTEL_BINDINGS,
    # Old rows hold these back, because the packages that depend on them set no upper bound.
    "dill",
    "fsspec",
    "huggingface-hub",
    "multiprocess",
    "pandas",
    "pyarrow",
    "setuptools",
)
VERSION = re.compile(r"[0-9]+(\.[0-9]+)*(\.?(post|rc|a|b)[0-9]+)?(\+[a-z0-9.]+)?")
EXACT_VERSION = "an exact version such as 2.13.0+cpu"
PYTORCH_CPU = "+cpu"
DEFAULT_TORCH_SUFFIX = "-default-torch"


# The oldest row on a release that Debian supports.
OLDEST_SUPPORTED = "2.1"


@dataclass(frozen=True)
class DebianRelease:
    """The facts of a Debian release that an image depends on. `eol`: the end of Debian's long-term support."""

    number: int
    suite: str
    python_full: str
    glibc_minor: int
    eol: str

    @property
    def python(self) -> str:
        """The version as a row has it, 3.11 for example."""
        return self.python_full.rpartition(".")[0]

    def ended(self, today: date) -> str:
        """A sentence after the end of the support; empty before it."""
        if today <= date.fromisoformat(self.eol):
            return ""
        return (
            f"Debian {self.number} has had no security updates since {self.eol}: use pin {OLDEST_SUPPORTED} or "
            "newer, unless a model needs the old versions"
        )


# Source: Debian's package versions of python3 and libc6 in each release; the LTS schedule of Debian's wiki.
DEBIAN_RELEASES = {
    11: DebianRelease(11, "bullseye", "3.9.2", 31, "2026-08-31"),
    12: DebianRelease(12, "bookworm", "3.11.2", 36, "2028-06-30"),
    13: DebianRelease(13, "trixie", "3.13.5", 41, "2030-06-30"),
}


class Ccl(StrEnum):
    """Where the `ccl` backend comes from: Intel's wheel, or this project's bindings, compiled into the image."""

    INTEL = "intel"
    BINDINGS = "bindings"


class TorchSource(StrEnum):
    """Which build of torch: the row's (+cpu), or the build of the same version on the default index (CUDA)."""

    ROW = "row"
    DEFAULT = "default"


@dataclass(frozen=True)
class Source:
    """Where pip searches for a wheel after the indexes of the host: a package index, or a page of links."""

    url: str
    is_page: bool = False

    @property
    def extra_option(self) -> list[str]:
        """pip's options to search this source and the host's indexes."""
        return ["--find-links" if self.is_page else "--extra-index-url", self.url]

    @property
    def only_option(self) -> list[str]:
        """pip's options to search this source and not the host's indexes."""
        return ["--no-index", "--find-links", self.url] if self.is_page else ["--index-url", self.url]


@dataclass(frozen=True)
class IntelWheel:
    """Intel's wheel of the ccl backend for a row: its version, its version of oneCCL, and where to find it."""

    version: str
    oneccl: str
    source: Source


@dataclass(frozen=True)
class Pin:
    """One row of the matrix. `packages` maps a distribution's name to its exact version.

    `base`: the official image by digest; empty if only mmdebstrap can build the base.
    `build_packages`: the packages that the ccl backend is compiled from. They are fetched, but not installed.
    `oneccl`: the version of oneCCL in the ccl backend.
    `intel`: Intel's wheel, which replaces this project's backend with `--set ccl=intel`.
    `sources`: where to find packages that the host's indexes may lack.
    `own`: a user's own combination of versions, which has no row.
    `added`: a user's own packages on top of `plain`, the same pin without them.
    `known_advisories`: advisories for any version. `advisories`: those that apply to this pin's versions.
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
    intel: IntelWheel | None = None
    torch_source: TorchSource = TorchSource.ROW
    own: bool = False
    added: Added = NOTHING
    plain: Pin | None = None
    known_advisories: tuple[Advisory, ...] = ()

    @property
    def requirements(self) -> tuple[str, ...]:
        """The row's packages as pip requirements, sorted by name."""
        return _requirements(self.packages)

    @property
    def build_requirements(self) -> tuple[str, ...]:
        """`build_packages` as pip requirements, sorted by name."""
        return _requirements(self.build_packages)

    @property
    def compiled_packages(self) -> dict[str, str]:
        """The version, by name, of the bindings that are compiled into the image; empty for Intel's wheel.

        This project's bindings have the same distribution name as Intel's, and the version of torch.
        """
        return {INTEL_BINDINGS: self.packages["torch"].partition("+")[0]} if self.ccl is Ccl.BINDINGS else {}

    @property
    def advisories(self) -> tuple[Advisory, ...]:
        """The advisories that apply to the versions in `packages`."""
        return tuple(advisory for advisory in self.known_advisories if advisory.applies_to(self.packages))

    @property
    def warnings(self) -> tuple[str, ...]:
        """The end of Debian's support, and the advisories."""
        ended = self.debian.ended(datetime.now(UTC).date())
        return (*filter(None, [ended]), *map(str, self.advisories))

    @property
    def image(self) -> str:
        """The local tag of this checkout's image of the pin. No other checkout moves this tag."""
        return f"{self.shared_tag}-{IDENTITY}"

    @property
    def shared_tag(self) -> str:
        """A tag without the checkout's identity, for commands that users type. The last ./inv build moves it."""
        return f"cpu-train-stack:{self.name}"

    @property
    def options(self) -> str:
        """The options of a command line that select this pin, if it is not a user's own."""
        row = self.without_added.name.removesuffix(DEFAULT_TORCH_SUFFIX)
        default = self.torch_source is TorchSource.DEFAULT
        added = "".join(f" --with {shlex.quote(value)}" for value in self.added.typed)
        return f"--pin {row}" + (f" --torch-source {TorchSource.DEFAULT}" if default else "") + added

    @property
    def without_added(self) -> Pin:
        """The same pin without a user's own packages."""
        return self.plain or self

    @property
    def facts_sha256(self) -> str:
        """The sha256 of the chosen versions. A proof (tooling.pins.status) is valid for one sha256 only."""
        facts = [self.python, self.debian.number, self.ccl, *self.requirements, *self.build_requirements]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()

    def with_default_torch(self) -> Pin:
        """The same row with the default index's build of torch."""
        torch = self.packages["torch"].removesuffix(PYTORCH_CPU)
        sources = {name: source for name, source in self.sources.items() if name != "torch"}
        return replace(
            self,
            name=self.name + DEFAULT_TORCH_SUFFIX,
            packages=MappingProxyType({**self.packages, "torch": torch}),
            sources=MappingProxyType(sources),
            torch_source=TorchSource.DEFAULT,
        )

    def with_intel(self, wheel: IntelWheel) -> Pin:
        """The row with Intel's wheel as its backend."""
        return replace(
            self,
            ccl=Ccl.INTEL,
            oneccl=wheel.oneccl,
            packages=MappingProxyType({**self.packages, INTEL_BINDINGS: wheel.version}),
            build_packages=MappingProxyType({}),
            sources=MappingProxyType({**self.sources, INTEL_BINDINGS: wheel.source}),
        )

    def with_versions(self, versions: Mapping[str, str]) -> Pin:
        """The row with other versions, under a name that depends on these versions."""
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

    def with_added(self, added: Added) -> Pin:
        """The pin with a user's own packages, under a name that depends on what was asked for."""
        return replace(self, name=f"{self.name}-with-{added.sha256[:8]}", own=True, added=added, plain=self)


def _requirements(packages: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(f"{name}=={version}" for name, version in sorted(packages.items()))
