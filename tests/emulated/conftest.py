"""The emulated machine for these tests: only where CTS_BOCHS names a git checkout of Bochs."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tooling.basis.paths import ROOT

CHECKOUT = "CTS_BOCHS"
# Of one command. The emulated machine is a thousand times slower than a real one.
LIMIT_SECONDS = 3 * 3600
Emulate = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def emulate() -> Emulate:
    """Runs a command on the emulated machine: emulate("plan", "--json", data=folder)."""
    checkout = os.environ.get(CHECKOUT)
    if not checkout:
        pytest.skip(f"{CHECKOUT} names no git checkout of Bochs, which emulates a CPU with AMX")

    def run(*command: str, data: Path | None = None) -> subprocess.CompletedProcess[str]:
        folder = ["--data", str(data)] if data else []
        argv = [str(ROOT / "inv"), "dev", "emulate", "--bochs", checkout, *folder, "--", *command]
        return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=LIMIT_SECONDS)

    return run
