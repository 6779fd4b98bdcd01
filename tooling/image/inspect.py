"""What is in an image: asked of the image itself, never of what it was built from."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from packaging.utils import canonicalize_name

from tooling.basis.errors import UsageError
from tooling.basis.paths import ROOT
from tooling.engine import docker
from tooling.image.build import BACKEND
from tooling.pins.pin import Ccl, Pin

INVENTORY = ROOT / "tooling" / "image" / "probe.py"
PYTHON = "/opt/venv/bin/python"
INVENTORY_SECONDS = 120.0
# Two ranks start for each backend, on a machine that may be busy.
DOCTOR_SECONDS = 600.0
# What decides how a container runs. Labels do not, and an image that only differs in them is the same.
CONFIGURATION = ("Entrypoint", "Cmd", "Env", "User", "WorkingDir")


@dataclass(frozen=True)
class Inventory:
    """`apt` and `python_packages`: rows of tooling.image.probe."""

    pin: str
    python: str
    debian: str
    apt: tuple[Mapping[str, str], ...]
    python_packages: tuple[Mapping[str, str], ...]

    @property
    def versions(self) -> dict[str, str]:
        """Version by canonical name of every Python package."""
        return {canonicalize_name(row["name"]): row["version"] for row in self.python_packages}


def content_sha256(reference: str) -> str:
    """The sum of a local image's layers and configuration, without its labels."""
    document = _inspect(reference)
    configuration = {key: document["Config"].get(key) for key in CONFIGURATION}
    text = json.dumps([document["RootFS"]["Layers"], configuration], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def layers(reference: str) -> list[str]:
    """The digests of a local image's uncompressed layers, the base's first."""
    return list(_inspect(reference)["RootFS"]["Layers"])


def inventory(reference: str) -> Inventory:
    """Starts the image and asks it. Raises UsageError if it cannot answer."""
    arguments = ["--network=none", "--interactive", "--entrypoint", PYTHON]
    with INVENTORY.open("rb") as script:
        argv = ["-I", "-"]
        result = docker.run(
            reference, argv, arguments, subprocess.PIPE, subprocess.PIPE, INVENTORY_SECONDS, stdin=script
        )
    if result.returncode != 0:
        raise UsageError(f"{reference} cannot list its packages: {_last_line(result.stderr)}")
    document = json.loads(result.stdout)
    return Inventory(
        document["pin"],
        document["python"],
        document["debian"],
        tuple(document["apt"]),
        tuple(document["python_packages"]),
    )


def doctor(reference: str) -> list[Mapping[str, str]]:
    """The checks of the image's own `doctor --json`."""
    result = docker.run(
        reference, ["doctor", "--json"], ["--network=none"], subprocess.PIPE, subprocess.PIPE, DOCTOR_SECONDS
    )
    try:
        return list(json.loads(result.stdout)["checks"])
    except (ValueError, KeyError):
        raise UsageError(f"{reference}: its doctor printed no report: {_last_line(result.stderr)}") from None


def mismatch(pin: Pin, found: Inventory, checks: Sequence[Mapping[str, str]]) -> str | None:
    """What the running image has that its row has not, in words; None where they agree."""
    expected = {"pin": pin.name, "python": pin.python, "debian": str(pin.debian.number)}
    for name, value in expected.items():
        if (was := getattr(found, name)) != value:
            return f"{name} is {was!r}, the row has {value!r}"
    packages = {canonicalize_name(name): version for name, version in pin.packages.items()}
    if pin.ccl is Ccl.BINDINGS:
        packages[canonicalize_name(BACKEND)] = pin.packages["torch"].partition("+")[0]
    for package, version in packages.items():
        if (has := found.versions.get(package)) != version:
            return f"{package} is {has or 'missing'}, the row has {version}"
    by_name = {check["name"]: check for check in checks}
    if by_name.get("versions", {}).get("status") != "ok":
        return f"its doctor's versions are not ok: {by_name.get('versions', {}).get('detail', 'not checked')}"
    failed = [check for check in checks if check["status"] == "error"]
    return f"its doctor finds: {failed[0]['name']}: {failed[0]['detail']}" if failed else None


def _inspect(reference: str) -> dict[str, Any]:
    argv = ["docker", "image", "inspect", "--format", "{{json .}}", reference]
    result = subprocess.run(argv, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise UsageError(f"image {reference} is not in the engine: build it with ./inv build")
    return dict(json.loads(result.stdout))


def _last_line(output: bytes) -> str:
    return (output.decode(errors="replace").strip().splitlines() or ["no message"])[-1]
