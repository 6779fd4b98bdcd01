"""How much of the time the container's CPU quota has stopped this process, as its control group counts it."""

from __future__ import annotations

import re
from pathlib import Path

# Version 2, seen from inside a container; version 1. The one counts microseconds, the other nanoseconds.
_FILES = (
    ("sys/fs/cgroup/cpu.stat", "throttled_usec", 1e-6),
    ("sys/fs/cgroup/cpu/cpu.stat", "throttled_time", 1e-9),
)


def throttled_seconds(root: Path = Path("/")) -> float:
    """So far; 0 where no group says so."""
    for name, key, unit in _FILES:
        file = root / name
        found = re.search(rf"^{key} (\d+)$", file.read_text(), flags=re.MULTILINE) if file.is_file() else None
        if found:
            return int(found[1]) * unit
    return 0.0
