"""Runs inside the image: starts a training process and looks at it from outside, in /proc.

Usage: limits.py COMMAND ARGS... (of the entrypoint). Prints one JSON document: the plan, what the kernel says of
the process once torch is loaded, and how it ended.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

TORCH = "libtorch_cpu.so"


def main(argv: list[str]) -> None:
    plan = json.loads(subprocess.check_output(["entrypoint", "plan", "--json"], text=True))
    job = subprocess.Popen(["entrypoint", *argv], stdout=subprocess.PIPE, text=True)
    proc = Path("/proc") / str(job.pid)
    while TORCH not in (maps := (proc / "maps").read_text()):
        if job.poll() is not None:
            sys.exit(f"{argv} ended with {job.returncode} before it loaded torch")
        time.sleep(0.05)
    status = dict(re.findall(r"^(\w+):\s*(.*)$", (proc / "status").read_text(), re.MULTILINE))
    printed, _ = job.communicate(timeout=300)
    document = {
        "plan": plan,
        "mask": status["Cpus_allowed_list"],
        "tcmalloc": "libtcmalloc" in maps,
        "iomp": "libiomp5" in maps,
        "code": job.returncode,
        "printed": printed,
    }
    print(json.dumps(document))


if __name__ == "__main__":
    main(sys.argv[1:])
