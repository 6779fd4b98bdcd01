"""images/locks/<pin>.txt: every wheel of a pin with its sha256, in pip's --require-hashes format.

<pin>-build.txt has the same for packages that are compiled into the image but not installed. Locks of a user's own
versions and packages are in .cache/locks.

versions.toml is the input of a lock. A lock is the only input of a fetch and of an offline install.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from packaging.utils import canonicalize_name
from packaging.version import Version

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.files import sha256_of, write_with_folder
from cpu_train_stack.cli.say import say
from tooling.basis.paths import CACHE, IMAGES
from tooling.pins import choose
from tooling.pins.pin import Pin, TorchSource
from tooling.wheels import resolve
from tooling.wheels.resolve import LockedWheel

LOCKS = IMAGES / "locks"
OWN_LOCKS = CACHE / "locks"

COMMAND = "./inv dev lock"

_SHA256 = re.compile(r"[0-9a-f]{64}")


def choose_pin(
    name: str | None = None, assignments: Sequence[str] = (), torch_source: str = "", packages: Sequence[str] = ()
) -> Pin:
    """The pin for a command line, as choose.choose.

    Without `torch_source`: the row's build of torch, or that of the default index if only that one is locked.
    """
    pin = choose.choose(name, assignments, torch_source or TorchSource.ROW, packages)
    if torch_source or pin.without_added.own or path_of(pin).is_file():
        return pin
    default = choose.choose(name, assignments, TorchSource.DEFAULT, packages)
    if not path_of(default).is_file():
        return pin
    say(
        f"pin {pin.without_added.name}: torch is the build of pip's default index (CUDA, larger by gigabytes): "
        f"{COMMAND} {pin.without_added.options} locks the CPU build"
    )
    return default


def path_of(pin: Pin) -> Path:
    """The pin's lock file, whether it exists or not, without a user's own packages."""
    return _folder(pin) / f"{pin.without_added.name}.txt"


def build_path_of(pin: Pin) -> Path:
    """The lock file of the packages that are compiled into the pin's image."""
    return _folder(pin) / f"{pin.without_added.name}-build.txt"


def added_path_of(pin: Pin) -> Path:
    """The lock file of a user's own packages."""
    return OWN_LOCKS / f"{pin.name}.txt"


def _folder(pin: Pin) -> Path:
    """The lock of a user's own combination is not part of the repository."""
    return OWN_LOCKS if pin.without_added.own else LOCKS


def read(pin: Pin) -> dict[str, LockedWheel]:
    """The pin's wheels by canonical name. Raises UsageError if the lock is missing, malformed or out of date."""
    return _read(pin, path_of(pin), pin.packages)


def read_build(pin: Pin) -> dict[str, LockedWheel]:
    """The wheels that are compiled into the pin's image, by canonical name."""
    return _read(pin, build_path_of(pin), pin.build_packages)


def read_added(pin: Pin) -> dict[str, LockedWheel]:
    """The wheels of a user's own packages by canonical name; none without such packages."""
    return {wheel.name: wheel for wheel in _parse(pin, added_path_of(pin))} if pin.added else {}


def write_added(pin: Pin, wheels: list[LockedWheel]) -> Path:
    """Replace the lock of a user's own packages."""
    path = added_path_of(pin)
    write_with_folder(path, _extended(pin) + _render(wheels))
    return path


def extends_the_present_row(pin: Pin) -> bool:
    """Whether the lock of a user's own packages exists and was resolved against the pin's present lock."""
    path = added_path_of(pin)
    return path.is_file() and path.read_text(encoding="utf-8").startswith(_extended(pin))


def _extended(pin: Pin) -> str:
    return f"# Packages on top of {path_of(pin).name}, whose sha256 is {sha256_of(path_of(pin))}.\n"


def write(pin: Pin) -> Path:
    """Resolve the pin's packages with pip and replace its locks. If anything fails, the old locks stay."""
    say(f"resolving {len(pin.packages)} packages for Python {pin.python} (wheels are inspected, not installed)")
    pin = pin.without_added
    packages, build_packages = resolve.resolve(pin)
    # The lock that a build looks for comes last: a disk that is full in between leaves no half of a pair.
    for path, wheels in ((build_path_of(pin), build_packages), (path_of(pin), packages)):
        header = f"# Every wheel of pin {pin.name}; written by {COMMAND} {pin.options}, not by hand.\n"
        write_with_folder(path, header + _render(wheels))
    return path_of(pin)


def _read(pin: Pin, path: Path, packages: Mapping[str, str]) -> dict[str, LockedWheel]:
    if not path.is_file():
        raise UsageError(f"pin {pin.name} has no {path.name}: create it with {COMMAND} {pin.options}")
    wheels = {wheel.name: wheel for wheel in _parse(pin, path)}
    for name, version in packages.items():
        wheel = wheels.get(canonicalize_name(name))
        if wheel is None or Version(wheel.version) != Version(version):  # 2.13 is 2.13.0
            found = wheel.version if wheel else "nothing"
            raise UsageError(
                f"{path.name} locks {name} {found}, but versions.toml has {version}: run {COMMAND} {pin.options}"
            )
    return wheels


def _render(wheels: list[LockedWheel]) -> str:
    lines = []
    for wheel in sorted(wheels, key=lambda wheel: wheel.name):
        lines += [f"{wheel.name}=={wheel.version} \\", f"    --hash=sha256:{wheel.sha256}"]
    return "".join(f"{line}\n" for line in lines)


def _parse(pin: Pin, path: Path) -> list[LockedWheel]:
    text = path.read_text(encoding="utf-8").replace("\\\n", " ")
    wheels = []
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        try:
            requirement, sha256 = line.split("--hash=sha256:")
            name, version = requirement.strip().split("==")
            Version(version)  # raises InvalidVersion, a ValueError
            if not _SHA256.fullmatch(sha256.strip()):
                raise ValueError(sha256)
        except ValueError:
            raise UsageError(
                f"{path.name}: {line!r} is not 'name==version --hash=sha256:…': run {COMMAND} {pin.options}"
            ) from None
        wheels.append(LockedWheel(canonicalize_name(name), version, sha256.strip()))
    return wheels
