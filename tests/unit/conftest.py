"""Settings of the unit tests."""

import gc
import os
import shutil
import tempfile
from pathlib import Path

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


def pytest_collection_finish() -> None:
    """Python's garbage collector leaves out the modules and tests, which stay until the end, from here."""
    gc.freeze()
