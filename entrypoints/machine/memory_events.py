"""The kernel's out-of-memory kills in this container. Torch-free."""

from __future__ import annotations

from pathlib import Path

# cgroup v2, v1. In a container either folder is the container's own.
_EVENT_FILES = ("sys/fs/cgroup/memory.events", "sys/fs/cgroup/memory/memory.oom_control")


def out_of_memory_kills(root: Path = Path("/")) -> int:
    """How many processes of this container the kernel has killed because its memory limit was reached."""
    for name in _EVENT_FILES:
        try:
            lines = (root / name).read_text().splitlines()
        except OSError:
            continue
        for line in lines:
            key, _, value = line.partition(" ")
            if key == "oom_kill":
                return int(value)
    return 0


class Kills:
    """Out-of-memory kills from now on. The kernel's counter starts with the container and is never reset."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._before = out_of_memory_kills(root)

    def any_new(self) -> bool:
        """Whether any kill happened since construction or the last `forget`."""
        return out_of_memory_kills(self._root) > self._before

    def forget(self) -> None:
        """Ignore the kills so far."""
        self._before = out_of_memory_kills(self._root)
