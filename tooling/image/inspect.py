"""Lists the contents of an image by running the image, so that a push describes what it pushes."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from packaging.utils import canonicalize_name

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.printable import last_line
from tooling.basis.paths import ROOT
from tooling.engine import docker
from tooling.pins.pin import Pin

PROBE = ROOT / "tooling" / "image" / "probe.py"
PYTHON = "/opt/venv/bin/python"
PROBE_SECONDS = 120.0
# The doctor starts two ranks for each backend, on a machine that may be busy.
DOCTOR_SECONDS = 600.0


@dataclass(frozen=True)
class Inventory:
    """The output of tooling.image.probe. `apt` and `python_packages`: one mapping for each package."""

    pin: str
    python: str
    debian: str
    apt: Sequence[Mapping[str, str]]
    python_packages: Sequence[Mapping[str, str]]

    @property
    def versions(self) -> dict[str, str]:
        """The version of every Python package by canonical name."""
        return {canonicalize_name(row["name"]): row["version"] for row in self.python_packages}


def content_sha256(reference: str) -> str:
    """The `content_sha256` of a local image."""
    return docker.read_image(reference).content_sha256


def inventory(reference: str) -> Inventory:
    """Run tooling.image.probe in the image. Raises UsageError if it fails."""
    arguments = ["--network=none", "--interactive", "--entrypoint", PYTHON]
    with PROBE.open("rb") as script:
        argv = ["-I", "-"]
        result = docker.run(
            reference, argv, arguments, subprocess.PIPE, subprocess.PIPE, PROBE_SECONDS, stdin=script
        )
    if result.returncode != 0:
        error = last_line(result.stderr.decode(errors="replace"))
        raise UsageError(f"{reference} cannot list its packages: {error}")
    return Inventory(**json.loads(result.stdout))


def doctor(reference: str) -> list[Mapping[str, str]]:
    """The checks in the output of the image's `doctor --json`."""
    result = docker.run(
        reference, ["doctor", "--json"], ["--network=none"], subprocess.PIPE, subprocess.PIPE, DOCTOR_SECONDS
    )
    try:
        return list(json.loads(result.stdout)["checks"])
    except (ValueError, KeyError):
        error = last_line(result.stderr.decode(errors="replace"))
        raise UsageError(f"{reference}: doctor --json printed no report: {error}") from None


def mismatch(pin: Pin, found: Inventory, checks: Sequence[Mapping[str, str]]) -> str | None:
    """A message with the first difference between the running image and its row, or None."""
    expected = {"pin": pin.name, "python": pin.python, "debian": str(pin.debian.number)}
    for name, value in expected.items():
        if (was := getattr(found, name)) != value:
            return f"{name} is {was!r}, the row has {value!r}"
    for name, version in {**pin.packages, **pin.compiled_packages}.items():
        if (has := found.versions.get(canonicalize_name(name))) != version:
            return f"{name} is {has or 'missing'}, the row has {version}"
    by_name = {check["name"]: check for check in checks}
    if by_name.get("versions", {}).get("status") != "ok":
        return f"its doctor reports wrong versions: {by_name.get('versions', {}).get('detail', 'not checked')}"
    failed = [check for check in checks if check["status"] == "error"]
    return f"its doctor reports an error: {failed[0]['name']}: {failed[0]['detail']}" if failed else None
