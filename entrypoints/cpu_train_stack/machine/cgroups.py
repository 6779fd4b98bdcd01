"""This process's control groups (cgroups): limits, out-of-memory kills, throttling. Versions 1 and 2, or both.

The limits of a group and of all its parents apply, so `read_limits` takes the tightest. Groups above the mount
point are invisible, which is the usual view from inside a container. Torch-free.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from cpu_train_stack.cli import files
from cpu_train_stack.machine.facts import MemoryLimit, Quota

CONTROLLERS = ("cpu", "cpuset", "memory")
# Counters by whether the hierarchy is of version 2: file, key, and factor to the unit of the result.
_OUT_OF_MEMORY_KILLS = {True: ("memory.events", "oom_kill", 1), False: ("memory.oom_control", "oom_kill", 1)}
_THROTTLED_SECONDS = {True: ("cpu.stat", "throttled_usec", 1e-6), False: ("cpu.stat", "throttled_time", 1e-9)}
# Version 1 writes "unlimited" as the largest multiple of a page that fits in 63 bits.
_UNLIMITED_BYTES = 1 << 60


@dataclass(frozen=True)
class Limits:
    """`cpuset`: the CPUs that the group may use, in the kernel's list format; empty if no group limits them."""

    quota: Quota | None = None
    memory: MemoryLimit | None = None
    cpuset: str = ""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Mount:
    """A mounted hierarchy. `top`: the group that is visible at `point`. `controllers`: empty for version 2."""

    top: str
    point: str
    controllers: frozenset[str]


def read_limits(root: Path = Path("/")) -> Limits:
    """This process's limits, from `root`/proc and the control groups that are mounted below `root`."""
    folders = _folders(root)
    if not folders:
        return Limits(
            warnings=("no control group file system is mounted: CPU quotas and memory limits cannot be read",)
        )
    warnings: list[str] = []
    quotas = [quota for found in folders["cpu"] for quota in _quota(*found, root, warnings)]
    memory = [limit for found in folders["memory"] for limit in _memory(*found, root, warnings)]
    return Limits(
        quota=min(quotas, key=lambda quota: quota.cpus, default=None),
        memory=min(memory, key=lambda limit: limit.limit_bytes, default=None),
        cpuset=next(filter(None, (_cpuset(*found, warnings) for found in folders["cpuset"])), ""),
        warnings=tuple(dict.fromkeys(warnings)),
    )


def throttled_seconds(root: Path = Path("/")) -> float:
    """How long CPU quotas have paused this container's processes so far; 0 without a quota.

    The kernel counts the pauses in the group that has the quota, and 0 in those below. Only the growth belongs to
    this job: a parent group may have been paused before.
    """
    return sum(_counters("cpu", _THROTTLED_SECONDS, root), 0.0)


class OutOfMemoryKills:
    """The kernel's out-of-memory kills in this container from now on.

    The kernel's counter starts with the container and is never reset.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self.forget()

    def any_new(self) -> bool:
        """Whether any kill happened since construction or the last `forget`."""
        return self._kills() > self._before

    def forget(self) -> None:
        """Ignore the kills so far."""
        self._before = self._kills()

    def _kills(self) -> float:
        """The parents' counters include other containers."""
        return next(_counters("memory", _OUT_OF_MEMORY_KILLS, self._root), 0.0)


def _counters(controller: str, places: Mapping[bool, tuple[str, str, float]], root: Path) -> Iterator[float]:
    """The counters of the process's group and of its parents, as far as they have one."""
    for folder, version_2 in _folders(root).get(controller, ()):
        name, key, factor = places[version_2]
        for line in files.text(folder / name).splitlines():
            if line.startswith(f"{key} "):
                yield int(line.split()[1]) * factor


def _folders(root: Path) -> dict[str, list[tuple[Path, bool]]]:
    """By controller, the folders of the process's group and its parents, and whether they are of version 2."""
    mounts, groups = list(_mounts(root)), _groups(root)
    if not mounts or not groups:
        return {}
    folders: dict[str, list[tuple[Path, bool]]] = {name: [] for name in CONTROLLERS}
    for mount in mounts:
        version_2 = not mount.controllers
        for name in CONTROLLERS if version_2 else mount.controllers:
            path = groups.get("" if version_2 else name)
            if path is not None:
                folders[name] += [(folder, version_2) for folder in _way_up(root, mount, path)]
    return folders


def _mounts(root: Path) -> Iterator[_Mount]:
    """See proc_pid_mountinfo(5): "id parent device top point options [optional...] - type source options"."""
    for line in files.text(root / "proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(fields) < 6 or len(kind) < 3 or kind[0] not in ("cgroup", "cgroup2"):
            continue
        controllers = frozenset(kind[2].split(",")) & set(CONTROLLERS) if kind[0] == "cgroup" else frozenset()
        if controllers or kind[0] == "cgroup2":
            yield _Mount(_unescape(fields[3]), _unescape(fields[4]), controllers)


def _unescape(path: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), path)


def _groups(root: Path) -> dict[str, str]:
    """The process's group by controller; version 2's under the empty name."""
    found: dict[str, str] = {}
    for line in files.text(root / "proc/self/cgroup").splitlines():
        parts = line.split(":", 2)
        if len(parts) == 3:
            found.update(dict.fromkeys(parts[1].split(","), parts[2]))
    return found


def _way_up(root: Path, mount: _Mount, path: str) -> list[Path]:
    """The folders of the group at `path` and of its parents, as far as the mount shows them."""
    point = root / mount.point.lstrip("/")
    top = mount.top.rstrip("/")
    inside = path[len(top) :] if f"{path}/".startswith(f"{top}/") else ""
    folder = point / inside.strip("/")
    # A path that begins with /.. is outside this process's namespace: the mount does not show that group.
    if ".." in folder.parts or not folder.is_dir():
        folder = point
    return [folder, *(parent for parent in folder.parents if point in (parent, *parent.parents))]


def _quota(folder: Path, version_2: bool, root: Path, warnings: list[str]) -> Iterator[Quota]:
    file = folder / ("cpu.max" if version_2 else "cpu.cfs_quota_us")
    text = _text(file, warnings)
    if text and not version_2:
        text += " " + _text(folder / "cpu.cfs_period_us", warnings)
    if not text or text.split()[0] in ("max", "-1"):
        return
    try:
        quota, period = (int(number) for number in text.split())
        yield Quota(quota / period, _shown(file, root))
    except (ValueError, ZeroDivisionError):
        warnings.append(f"{file} is {text!r}, expected a quota and a period in microseconds: ignored")


def _memory(folder: Path, version_2: bool, root: Path, warnings: list[str]) -> Iterator[MemoryLimit]:
    file = folder / ("memory.max" if version_2 else "memory.limit_in_bytes")
    text = _text(file, warnings)
    if text.isdigit() and int(text) < _UNLIMITED_BYTES:
        yield MemoryLimit(int(text), _shown(file, root))


def _cpuset(folder: Path, version_2: bool, warnings: list[str]) -> str:
    names = ("cpuset.cpus.effective",) if version_2 else ("cpuset.effective_cpus", "cpuset.cpus")
    return next(filter(None, (_text(folder / name, warnings) for name in names)), "")


def _shown(file: Path, root: Path) -> str:
    return "/" + str(file.relative_to(root))


def _text(file: Path, warnings: list[str]) -> str:
    """The file's only line; empty if the file does not exist: not every group has every controller."""
    try:
        return file.read_text().strip()
    except FileNotFoundError:
        return ""
    except OSError as error:
        warnings.append(f"{file} cannot be read ({error.strerror}): its limit is unknown")
        return ""
