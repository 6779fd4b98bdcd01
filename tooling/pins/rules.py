"""Which versions fit together: pure functions of a row. A rule returns a message if the row breaks it.

The tables are facts about published packages. The choices are in images/versions.toml.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from packaging.version import Version

from tooling.pins.pin import INTEL_BINDINGS, IPEX, PYTORCH_CPU, Ccl, Pin

# torch's release -> Intel's bindings. They are compiled against exactly this torch: with another release, the
# import fails with an undefined symbol. Source: the releases of intel/torch-ccl; v2.7.0+cpu is the last tag for
# the CPU.
BINDINGS_OF_TORCH = {
    "1.10.0": "1.10.0",
    "1.11.0": "1.11.0",
    "1.12.0": "1.12.0",
    "1.12.1": "1.12.100",
    "1.13.0": "1.13.0",
    "1.13.1": "1.13.0",
    "2.0.0": "2.0.0",
    "2.0.1": "2.0.0",
    "2.1.0": "2.1.0",
    "2.1.1": "2.1.0",
    "2.2.0": "2.2.0",
    "2.3.0": "2.3.0",
    "2.4.0": "2.4.0",
    "2.5.0": "2.5.0",
    "2.6.0": "2.6.0",
    "2.7.0": "2.7.0",
}
# Python -> the first and the last torch with wheels for it. Source: torch's release notes.
TORCH_FOR_PYTHON: dict[str, tuple[str, str | None]] = {
    "3.9": ("1.8.1", "2.8.0"),
    "3.11": ("1.13.0", None),
    "3.13": ("2.5.0", None),
}
# From this transformers on -> the oldest torch that it accepts. Source: the import checks of transformers.
OLDEST_TORCH = {"5.23.0": "2.6.0", "5.3.0": "2.4.0", "4.55.0": "2.1.0", "4.48.0": "2.0.0"}
# From this transformers on -> the oldest Python.
OLDEST_PYTHON = {"5.23.0": "3.11"}
# Withdrawn by their authors -> the version to use instead.
YANKED = {("transformers", "4.46.0"): "4.46.3"}
# The first torch whose wheels are compiled with C++'s current ABI.
CXX11_ABI = "2.6.0"
# The first torch that this project's bindings compile against, and the first that works with numpy 2.
BINDINGS_FROM = "2.8.0"
NUMPY_2_FROM = "2.3.0"
# The first setuptools without pkg_resources, and the first IPEX that does not import it: 1.13 to 2.7 were seen to.
NO_PKG_RESOURCES_FROM, IPEX_WITHOUT_IT = "82", "2.8"


@dataclass(frozen=True)
class Row:
    """The input of the rules. `packages` maps a distribution's name to its exact version."""

    python: str
    packages: Mapping[str, str]
    ccl: Ccl

    def version(self, name: str) -> Version | None:
        return Version(self.packages[name]) if name in self.packages else None

    @property
    def torch(self) -> Version:
        return Version(self.packages["torch"])


def row_of(pin: Pin) -> Row:
    """The part of a pin that the rules use."""
    return Row(pin.python, pin.packages, pin.ccl)


def abi(torch: str) -> str:
    """The C++ ABI of a torch wheel. Extensions must be compiled with the same ABI."""
    return "cxx11" if Version(torch) >= Version(CXX11_ABI) else "pre-cxx11"


def broken(row: Row) -> str | None:
    """The message of the first rule that a row breaks: what was found and what fits. None if it breaks none."""
    return next((problem for rule in RULES if (problem := rule(row))), None)


def not_yanked(row: Row) -> str | None:
    for (name, version), instead in YANKED.items():
        if row.packages.get(name) == version:
            return f"{name} {version} was withdrawn by its authors: use {instead}"
    return None


def python_has_torch(row: Row) -> str | None:
    if row.python not in TORCH_FOR_PYTHON:
        return f"no Debian release has Python {row.python}: choose one of {', '.join(TORCH_FOR_PYTHON)}"
    first, last = TORCH_FOR_PYTHON[row.python]
    torch = Version(row.torch.public)
    if torch < Version(first) or (last and torch > Version(last)):
        span = f"{first} to {last}" if last else f"{first} and later"
        return f"torch {row.torch} has no wheel for Python {row.python}: use torch {span}"
    return None


def transformers_takes_python(row: Row) -> str | None:
    oldest = _since(OLDEST_PYTHON, row)
    if oldest and Version(row.python) < Version(oldest):
        return f"transformers {row.packages['transformers']} needs Python {oldest} or later, found {row.python}"
    return None


def transformers_takes_torch(row: Row) -> str | None:
    oldest = _since(OLDEST_TORCH, row)
    if oldest and Version(row.torch.public) < Version(oldest):
        return f"transformers {row.packages['transformers']} needs torch {oldest} or later, found {row.torch}"
    return None


def numpy_fits_torch(row: Row) -> str | None:
    numpy = row.version("numpy")
    if numpy and numpy >= Version("2") and row.torch < Version(NUMPY_2_FROM):
        return f"torch {row.torch} needs numpy below 2, found {numpy}: numpy 2 needs torch {NUMPY_2_FROM} or later"
    return None


def ipex_is_for_torch(row: Row) -> str | None:
    ipex = row.version(IPEX)
    if ipex and ipex.release[:2] != row.torch.release[:2]:
        wanted = ".".join(map(str, row.torch.release[:2]))
        return f"{IPEX} {ipex} is only for torch {ipex.major}.{ipex.minor}, found {row.torch}: use {wanted}.*"
    return None


def ipex_finds_pkg_resources(row: Row) -> str | None:
    ipex, setuptools = row.version(IPEX), row.version("setuptools")
    if not ipex or ipex >= Version(IPEX_WITHOUT_IT):
        return None
    if setuptools and setuptools < Version(NO_PKG_RESOURCES_FROM):
        return None
    found = f"setuptools {setuptools}" if setuptools else "no setuptools"
    return f"{IPEX} {ipex} imports pkg_resources: use setuptools below {NO_PKG_RESOURCES_FROM}, found {found}"


def intel_bindings_are_for_torch(row: Row) -> str | None:
    found = row.version(INTEL_BINDINGS)
    if row.ccl is not Ccl.INTEL:
        return f"{INTEL_BINDINGS} is Intel's backend, but the row has ccl = {row.ccl.value!r}" if found else None
    if not found:
        return f"ccl = 'intel' needs {INTEL_BINDINGS} among the packages"
    wanted = BINDINGS_OF_TORCH.get(row.torch.public)
    if wanted is None:
        return (
            f"{INTEL_BINDINGS} was never published for torch {row.torch}, only for {', '.join(BINDINGS_OF_TORCH)}"
        )
    if Version(found.public) != Version(wanted):
        fits = [torch for torch, bindings in BINDINGS_OF_TORCH.items() if bindings == found.public]
        only = f"only fits torch {' and '.join(fits)}" if fits else "was never published"
        return f"{INTEL_BINDINGS} {found} {only}: use {wanted} with torch {row.torch}"
    return None


def intel_bindings_take_cpu_torch(row: Row) -> str | None:
    if row.ccl is Ccl.INTEL and row.torch.local != PYTORCH_CPU.removeprefix("+"):
        return f"{INTEL_BINDINGS} is linked against the {PYTORCH_CPU} build of torch, found torch {row.torch}"
    return None


def own_bindings_take_torch(row: Row) -> str | None:
    if row.ccl is Ccl.BINDINGS and row.torch < Version(BINDINGS_FROM):
        return f"this project's ccl backend needs torch {BINDINGS_FROM} or later, found {row.torch}"
    return None


Rule = Callable[[Row], str | None]

# Versions that do not exist come before versions that do not fit together.
RULES: tuple[Rule, ...] = (
    not_yanked,
    python_has_torch,
    transformers_takes_python,
    transformers_takes_torch,
    numpy_fits_torch,
    ipex_is_for_torch,
    intel_bindings_are_for_torch,
    intel_bindings_take_cpu_torch,
    own_bindings_take_torch,
    ipex_finds_pkg_resources,
)


def _since(table: Mapping[str, str], row: Row) -> str | None:
    """The value for the newest key that is not newer than the row's transformers."""
    transformers = row.version("transformers")
    reached = [Version(key) for key in table if transformers and transformers >= Version(key)]
    return table[str(max(reached))] if reached else None
