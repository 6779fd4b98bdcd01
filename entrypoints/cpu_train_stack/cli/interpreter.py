"""The command line that runs a module of this package in a new process of the same Python. Torch-free."""

from __future__ import annotations

import sys


def python_command(module: str, argv: list[str]) -> list[str]:
    """The command that runs `module` of this package in this interpreter, with the same sys.path."""
    # -P (Python 3.11) prevents files in the current folder from hiding libraries: pass it on if it was given.
    safe = ["-P"] if getattr(sys.flags, "safe_path", False) else []
    return [sys.executable, *safe, "-m", module, *argv]
