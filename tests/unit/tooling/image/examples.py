"""An image of the default pin, as test data: what it contains, and its lock after a push."""

from tooling.image.inspect import Inventory
from tooling.image.lock import ImageLock
from tooling.pins import parse

PIN = parse.load().pin()
APT = {"name": "libstdc++6", "version": "1:12.2.0-14+x", "architecture": "amd64"}
FOUND = Inventory(
    pin=PIN.name,
    python=PIN.python,
    debian=str(PIN.debian.number),
    apt=({**APT, "source": "gcc-12", "source_version": "12.2.0-14"},),
    python_packages=(
        *({"name": name, "version": version, "license": ""} for name, version in PIN.packages.items()),
        {"name": "oneccl-bind-pt", "version": "2.13.0", "license": "Apache-2.0"},
        {"name": "odd.one", "version": "1", "license": "No-Such-License"},
    ),
)
LOCK = ImageLock(
    image="registry.example:5000/team/stack@sha256:" + "1" * 64,
    tag="registry.example:5000/team/stack:0.1.0-2.13-0123456789ab",
    pin="2.13",
    revision="0123456789abcdef",
    labels={"cpu-train-stack.pin": "2.13"},
    sbom_sha256="2" * 64,
)
