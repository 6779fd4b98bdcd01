"""Makes room for dockerd's cgroups where this machine is itself a container with cgroup v2.

A cgroup that is not the kernel's own root can give controllers (cpuset, memory) to its children only while no
process is in it itself ("no internal processes", Documentation/admin-guide/cgroup-v2.rst). In a container all
processes are in what it sees as /, and the first `docker run` would fail: "cannot enter cgroupv2 ... with domain
controllers". Put into a child, they are out of the way.
"""

from __future__ import annotations

from pathlib import Path

from tooling.basis.say import Say

CGROUP = Path("/sys/fs/cgroup")
CHILD = "init"
_ATTEMPTS = 5  # a process may be born in / while the others are moved


def lacking_controllers(cgroup: Path = CGROUP) -> tuple[str, ...]:
    """Controllers of `cgroup` that its children do not get: () outside of containers and on v1."""
    if not (cgroup / "cgroup.type").is_file():  # the kernel's own root has no type, and v1 has not the file
        return ()
    here = (cgroup / "cgroup.controllers").read_text(encoding="ascii").split()
    given = (cgroup / "cgroup.subtree_control").read_text(encoding="ascii").split()
    return tuple(name for name in here if name not in given)


def make_room(say: Say, cgroup: Path = CGROUP) -> None:
    """Moves every process of `cgroup` into its child `init` and enables all controllers. Errors: OSError."""
    controllers = lacking_controllers(cgroup)
    if not controllers:
        return
    say(f"moving the processes of {cgroup} into {cgroup / CHILD}, to give containers {', '.join(controllers)}")
    child = cgroup / CHILD
    child.mkdir(exist_ok=True)
    for attempt in range(_ATTEMPTS):
        for pid in (cgroup / "cgroup.procs").read_text(encoding="ascii").split():
            _move(pid, child)
        try:
            (cgroup / "cgroup.subtree_control").write_text(
                " ".join(f"+{name}" for name in controllers), encoding="ascii"
            )
        except OSError:
            if attempt == _ATTEMPTS - 1:
                raise
        else:
            return


def _move(pid: str, child: Path) -> None:
    try:
        with (child / "cgroup.procs").open("a", encoding="ascii") as procs:
            procs.write(pid)
    except ProcessLookupError:
        return  # it has ended meanwhile
