"""Settings of the unit tests."""

import os
import resource
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# On a busy machine, the deadline and this check blame the input of a test (as in tooling/checks/in_image.py).
settings.register_profile("unit", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unit")

# The unit tests find only these programs on PATH: of Debian's essential packages, and git. A test that needs
# another program fails on every machine, not only where the program is not installed.
PROGRAMS = """
bash cat chmod cut date dirname echo env false find flock getopt git grep head id ln ls mkdir mount nice nohup
readlink rm sed setsid sh sha256sum sleep tail tar taskset timeout touch tr true umount uname yes
"""
_FOLDER = tempfile.TemporaryDirectory(prefix="cts-programs-")
for name in PROGRAMS.split():
    if found := shutil.which(name):
        (Path(_FOLDER.name) / name).symlink_to(found)
os.environ["PATH"] = _FOLDER.name


@pytest.fixture
def little_memory() -> Iterator[None]:
    """1 GiB more than the process has, which may have run many tests."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), hard))
    yield
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
