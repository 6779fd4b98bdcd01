"""Starts the Docker Engine: with systemd if it runs, otherwise `dockerd` in the background.

In a container with cgroup v2, dockerd needs cgroup controllers (see `give_controllers`).
"""

import re
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.say import say
from tooling.basis.paths import CACHE
from tooling.engine.find import EngineHost, Findings, find, find_dockerd

START_SECONDS = 30.0
LOG = CACHE / "dockerd.log"
# The PID of the dockerd that this checkout started.
STARTED = CACHE / "dockerd.pid"
CGROUP = Path("/sys/fs/cgroup")
CHILD = "init"
_ATTEMPTS = 5  # a process may start in the root cgroup while others are moved
PROC = Path("/proc")
PID_FILES = {
    Path("/var/run/docker.pid"): "dockerd",
    Path("/var/run/docker/containerd/containerd.pid"): "containerd",
}


def start(host: EngineHost) -> Findings:
    """Start the engine and wait until it answers. Raises UsageError with the cause after START_SECONDS."""
    if host.systemd:
        say("starting Docker: systemctl start docker")
        done = subprocess.run(
            ("systemctl", "start", "docker"), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise UsageError(f"systemctl start docker failed: {' '.join(done.stderr.split())}")
        return _wait(None, "see journalctl -u docker")
    for path, program in PID_FILES.items():
        if is_stale(path, program):
            say(f"removing {path}, left by a {program} that has ended")
            path.unlink(missing_ok=True)
    if next(iter(PID_FILES)).exists():
        say("dockerd is running but does not answer yet: waiting for it")
        return _wait(None, "stop this dockerd and retry")
    try:
        give_controllers()
    except OSError as error:
        say(f"giving cgroup controllers to containers failed ({error}): containers with limits may not start")
    say(f"starting dockerd in the background (no init system found), log: {LOG}")
    CACHE.mkdir(parents=True, exist_ok=True)
    with LOG.open("wb") as log:
        # In a separate session, dockerd survives Ctrl-C and the end of ./inv.
        process = subprocess.Popen(
            (find_dockerd() or "dockerd",),
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    STARTED.write_text(f"{process.pid}\n", encoding="ascii")
    return _wait(process, f"see {LOG}")


def _wait(process: subprocess.Popen[bytes] | None, see: str) -> Findings:
    deadline = time.monotonic() + START_SECONDS
    while True:
        findings = find()
        if findings.engine:
            return findings
        if process is not None and process.poll() is not None:
            cause = last_cause(LOG.read_text(encoding="utf-8", errors="replace"))
            raise UsageError(f"dockerd ended with {process.returncode}: {cause} ({see})")
        if time.monotonic() > deadline:
            raise UsageError(
                f"Docker did not answer within {START_SECONDS:.0f} s: {findings.problem or 'no answer'} ({see})"
            )
        time.sleep(0.3)


def last_cause(log: str) -> str:
    """The message in the last line of dockerd's log: the reason why dockerd ended."""
    lines = [line for line in log.splitlines() if line.strip()]
    if not lines:
        return "no log was written"
    message = re.search(r'\bmsg="((?:[^"\\]|\\.)*)"', lines[-1])
    return message[1].replace('\\"', '"') if message else lines[-1].strip()


def was_killed() -> bool:
    """Whether this checkout started the last engine, and the engine ended without deleting its pid file.

    dockerd deletes its pid file when it is stopped.
    """
    pid_file, program = next(iter(PID_FILES.items()))
    try:
        own = STARTED.read_text(encoding="ascii").strip() == pid_file.read_text(encoding="ascii").strip()
    except OSError:
        return False
    return own and is_stale(pid_file, program)


def is_stale(pid_file: Path, program: str, proc: Path = PROC) -> bool:
    """Whether the process of a pid file has ended. Its PID may belong to another program now.

    A zombie counts as ended: if process 1 is not an init, nothing reaps the zombie, and dockerd would wait for it.
    """
    try:
        pid = int(pid_file.read_text(encoding="ascii"))
    except FileNotFoundError:
        return False
    except ValueError:
        return True
    try:
        status = (proc / str(pid) / "status").read_text(encoding="utf-8")
    except OSError:
        return True
    fields = dict(re.findall(r"^(Name|State):\t(\S+)", status, re.MULTILINE))
    return fields.get("Name") != program or fields.get("State") == "Z"


def give_controllers(cgroup: Path = CGROUP) -> None:
    """Give all controllers of `cgroup` to its children. Raises OSError.

    A cgroup other than the kernel's root can give controllers (cpuset, memory) to its children only while no
    process is in the cgroup ("no internal processes", Documentation/admin-guide/cgroup-v2.rst). In a container,
    every process is in /, and the first `docker run` would fail: "cannot enter cgroupv2 ... with domain
    controllers". So this function moves the processes into the child `init` first.
    """
    controllers = lacking_controllers(cgroup)
    if not controllers:
        return
    say(f"moving the processes of {cgroup} into {cgroup / CHILD}, to give containers {', '.join(controllers)}")
    child = cgroup / CHILD
    child.mkdir(exist_ok=True)
    for attempt in range(_ATTEMPTS):
        for pid in (cgroup / "cgroup.procs").read_text(encoding="ascii").split():
            # A process may have ended in the meantime.
            with suppress(ProcessLookupError), (child / "cgroup.procs").open("a", encoding="ascii") as procs:
                procs.write(pid)
        try:
            (cgroup / "cgroup.subtree_control").write_text(
                " ".join(f"+{name}" for name in controllers), encoding="ascii"
            )
        except OSError:
            if attempt == _ATTEMPTS - 1:
                raise
        else:
            return


def lacking_controllers(cgroup: Path = CGROUP) -> tuple[str, ...]:
    """The controllers of `cgroup` that its children do not get. Empty outside of containers and with cgroup v1."""
    if not (cgroup / "cgroup.type").is_file():  # not in the kernel's root cgroup, and not in v1
        return ()
    available = (cgroup / "cgroup.controllers").read_text(encoding="ascii").split()
    enabled = (cgroup / "cgroup.subtree_control").read_text(encoding="ascii").split()
    return tuple(name for name in available if name not in enabled)
