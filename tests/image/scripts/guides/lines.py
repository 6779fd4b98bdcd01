"""Runs inside the image: lines of the guides, each in a bash of its own.

Usage: lines.py FILE, a JSON list of texts. Prints a JSON list of the exit code and the output of each.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def run(script: str) -> tuple[int, str]:
    done = subprocess.run(
        ["bash", "-c", script],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    return done.returncode, done.stdout.decode(errors="replace")


sys.stdout.write(json.dumps([run(script) for script in json.loads(Path(sys.argv[1]).read_text())]))
