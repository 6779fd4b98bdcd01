"""Which versions fit together: pure functions of a pin. A rule returns a message if the pin breaks it.

The tables are facts about published packages. The choices are in images/versions.toml.
"""

from collections.abc import Callable, Mapping

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
# Versions that their authors have withdrawn -> the version to use instead.
YANKED = {("transformers", "4.46.0"): "4.46.3"}
# The first torch whose wheels are compiled with C++'s current ABI.
CXX11_ABI = "2.6.0"
# The first torch that this project's bindings compile against, and the first that works with numpy 2.
BINDINGS_FROM = "1.10.0"
NUMPY_2_FROM = "2.3.0"
# The last torch that has an IPEX: Intel has archived IPEX.
LAST_IPEX = "2.8"
# The first setuptools without pkg_resources, and the first IPEX that does not import it (IPEX 1.13 to 2.7 do).
NO_PKG_RESOURCES_FROM, IPEX_WITHOUT_IT = "82", "2.8"


def abi(torch: str) -> str:
    """The C++ ABI of a torch wheel. Extensions must be compiled with the same ABI."""
    return "cxx11" if Version(torch) >= Version(CXX11_ABI) else "pre-cxx11"


def broken(pin: Pin) -> str | None:
    """The message of the first rule that a pin breaks: what was found and what fits. None if it breaks none."""
    return next((problem for rule in RULES if (problem := rule(pin))), None)


def not_yanked(pin: Pin) -> str | None:
    for (name, version), instead in YANKED.items():
        if pin.packages.get(name) == version:
            return f"{name} {version} was withdrawn by its authors: use {instead}"
    return None


def python_has_torch(pin: Pin) -> str | None:
    if pin.python not in TORCH_FOR_PYTHON:
        return f"no Debian release has Python {pin.python}: choose one of {', '.join(TORCH_FOR_PYTHON)}"
    first, last = TORCH_FOR_PYTHON[pin.python]
    torch = Version(_torch(pin).public)
    if torch < Version(first) or (last and torch > Version(last)):
        span = f"{first} to {last}" if last else f"{first} and later"
        return f"torch {_torch(pin)} has no wheel for Python {pin.python}: use torch {span}"
    return None


def transformers_takes_python(pin: Pin) -> str | None:
    oldest = _since(OLDEST_PYTHON, pin)
    if oldest and Version(pin.python) < Version(oldest):
        return f"transformers {pin.packages['transformers']} needs Python {oldest} or later, found {pin.python}"
    return None


def transformers_takes_torch(pin: Pin) -> str | None:
    oldest = _since(OLDEST_TORCH, pin)
    if oldest and Version(_torch(pin).public) < Version(oldest):
        return f"transformers {pin.packages['transformers']} needs torch {oldest} or later, found {_torch(pin)}"
    return None


def numpy_fits_torch(pin: Pin) -> str | None:
    numpy = _version(pin, "numpy")
    if numpy and numpy >= Version("2") and _torch(pin) < Version(NUMPY_2_FROM):
        return (
            f"torch {_torch(pin)} needs numpy below 2, found {numpy}: numpy 2 needs torch {NUMPY_2_FROM} or later"
        )
    return None


def ipex_is_for_torch(pin: Pin) -> str | None:
    ipex = _version(pin, IPEX)
    if ipex and ipex.release[:2] != _torch(pin).release[:2]:
        torch = _torch(pin)
        use = f"a pin with torch {ipex.major}.{ipex.minor} (./inv matrix)"
        if torch.release[:2] <= Version(LAST_IPEX).release:
            use += f", or {IPEX} {torch.major}.{torch.minor}.*"
        return f"{IPEX} {ipex} is only for torch {ipex.major}.{ipex.minor}, found {torch}: use {use}"
    return None


def ipex_finds_pkg_resources(pin: Pin) -> str | None:
    ipex, setuptools = _version(pin, IPEX), _version(pin, "setuptools")
    if not ipex or ipex >= Version(IPEX_WITHOUT_IT):
        return None
    if setuptools and setuptools < Version(NO_PKG_RESOURCES_FROM):
        return None
    found = f"setuptools {setuptools}" if setuptools else "no setuptools"
    return f"{IPEX} {ipex} imports pkg_resources: use setuptools below {NO_PKG_RESOURCES_FROM}, found {found}"


def intel_bindings_are_for_torch(pin: Pin) -> str | None:
    found, torch = _version(pin, INTEL_BINDINGS), _torch(pin)
    if pin.ccl is not Ccl.INTEL:
        return f"{INTEL_BINDINGS} is Intel's backend, which --set ccl=intel chooses" if found else None
    if not found:
        return f"ccl=intel needs {INTEL_BINDINGS}, found none"
    wanted = BINDINGS_OF_TORCH.get(torch.public)
    if wanted is None:
        return f"{INTEL_BINDINGS} was never published for torch {torch}, only for {', '.join(BINDINGS_OF_TORCH)}"
    if Version(found.public) != Version(wanted):
        fits = [key for key, bindings in BINDINGS_OF_TORCH.items() if bindings == found.public]
        only = f"only fits torch {' and '.join(fits)}" if fits else "was never published"
        return f"{INTEL_BINDINGS} {found} {only}: use {wanted} with torch {torch}"
    return None


def intel_bindings_take_cpu_torch(pin: Pin) -> str | None:
    if pin.ccl is Ccl.INTEL and _torch(pin).local != PYTORCH_CPU.removeprefix("+"):
        return f"{INTEL_BINDINGS} is linked against the {PYTORCH_CPU} build of torch, found torch {_torch(pin)}"
    return None


def own_bindings_take_torch(pin: Pin) -> str | None:
    if pin.ccl is Ccl.BINDINGS and _torch(pin) < Version(BINDINGS_FROM):
        return f"this project's ccl backend needs torch {BINDINGS_FROM} or later, found {_torch(pin)}"
    return None


Rule = Callable[[Pin], str | None]

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


def _version(pin: Pin, name: str) -> Version | None:
    return Version(pin.packages[name]) if name in pin.packages else None


def _torch(pin: Pin) -> Version:
    return Version(pin.packages["torch"])


def _since(table: Mapping[str, str], pin: Pin) -> str | None:
    """The value for the newest key that is not newer than the pin's transformers."""
    transformers = _version(pin, "transformers")
    reached = [Version(key) for key in table if transformers and transformers >= Version(key)]
    return table[str(max(reached))] if reached else None
