"""Fixtures of the tests that run clusters through ./inv, as a user does."""

import itertools
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.signals import as_at_a_terminal
from tooling.basis.paths import ROOT
from tooling.bench import collectives, scaling
from tooling.checks import soak
from tooling.cluster.compose import PROJECT_PREFIX
from tooling.cluster.run import folder_of

INV = str(ROOT / "inv")


# The default name of each task's cluster.
_NAMES = {
    "up": "cluster",
    "demo": "demo",
    "dev soak": soak.NAME,
    "bench collectives": collectives.CLUSTER,
    "bench scaling": scaling.CLUSTER,
}
# The clusters that this process's calls of ./inv started, in order.
_started: list[str] = []


def cluster_of(arguments: Sequence[str]) -> str | None:
    """The name of the cluster that `./inv arguments` starts, None if it starts none."""
    own = list(itertools.takewhile(lambda word: word != "--", arguments))
    default = _NAMES.get(" ".join(own[:2])) or _NAMES.get(own[0])
    given = re.search(r"(?:^|\s)--name[=\s](\S+)", " ".join(own))
    return given[1] if default and given else default


def inv(*arguments: str, timeout: float = 300, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Runs ./inv to its end."""
    if name := cluster_of(arguments):
        _started.append(name)
    return subprocess.run([INV, *arguments], capture_output=True, text=True, check=False, timeout=timeout, cwd=cwd)


def containers(cluster: str) -> list[str]:
    """The names of a cluster's containers, running or not."""
    return _listed("ps", "--all", "--filter", f"name=^{PROJECT_PREFIX}{cluster}-node-", "--format", "{{.Names}}")


def networks(cluster: str) -> list[str]:
    """The names of a cluster's networks."""
    return _listed("network", "ls", "--filter", f"name=^{PROJECT_PREFIX}{cluster}_", "--format", "{{.Name}}")


def _listed(*arguments: str) -> list[str]:
    return subprocess.run(
        ["docker", *arguments], capture_output=True, text=True, check=True, timeout=60
    ).stdout.split()


class Running:
    """A `./inv up` in the background, its output in a file."""

    def __init__(self, name: str, log: Path, *arguments: str) -> None:
        self.name, self.log = name, log
        _started.append(name)
        with log.open("wb") as stream:
            self.process = subprocess.Popen(
                [INV, "up", f"--name={name}", *arguments],
                stdout=stream,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                preexec_fn=as_at_a_terminal,
            )

    def output(self) -> str:
        """The output so far."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def wait_for(self, condition: Callable[[str], bool], timeout: float = 120) -> None:
        """Waits until the output meets a condition. Fails if ./inv ends first, or after `timeout`."""
        deadline = time.monotonic() + timeout
        while not condition(self.output()):
            assert self.process.poll() is None, f"it ended with {self.process.returncode}:\n{self.output()}"
            assert time.monotonic() < deadline, f"waited {timeout} s:\n{self.output()}"
            time.sleep(0.2)

    def wait(self, timeout: float = 120) -> int:
        """The exit code of ./inv."""
        return self.process.wait(timeout)


@pytest.fixture
def start(tmp_path: Path, image: str) -> Iterator[Callable[..., Running]]:
    """Starts `./inv up` in the background: start("name", "--nodes=2", "--", "train", …)."""
    started: list[Running] = []

    def begin(name: str, *arguments: str) -> Running:
        running = Running(name, tmp_path / f"{name}.log", *arguments)
        started.append(running)
        return running

    yield begin
    for running in started:
        if running.process.poll() is None:
            running.process.terminate()
            running.process.wait(60)


def _existing() -> set[str]:
    """The names of this checkout's clusters that have a container or a network."""
    arguments = ("--filter", f"name=^{PROJECT_PREFIX}", "--format", '{{.Label "com.docker.compose.project"}}')
    projects = {*_listed("ps", "--all", *arguments), *_listed("network", "ls", *arguments)}
    return {project.removeprefix(PROJECT_PREFIX) for project in projects}


@contextmanager
def no_cluster_left() -> Iterator[None]:
    """Removes the clusters that are started within this context and left running, and fails if there was one.

    Clusters that existed before, or that a user or another test process starts in this checkout, are not touched.
    """
    before, earlier = _existing(), len(_started)
    yield
    left = (_existing() - before) & set(_started[earlier:])
    for name in left:
        inv("down", f"--name={name}")
    assert not left, f"left behind: {', '.join(left)}"


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Fails a test that leaves a container or a network of its clusters behind."""
    with no_cluster_left():
        yield


@pytest.fixture(scope="session", autouse=True)
def no_logs_left() -> Iterator[None]:
    """Deletes the logs of this session's clusters, so that ./inv logs lists only the user's clusters."""
    yield
    for name in set(_started):
        (folder_of(name) / "log.txt").unlink(missing_ok=True)


@pytest.fixture
def scripts(tmp_path: Path) -> Path:
    """A folder for a test's own scripts, to mount at /data."""
    folder = tmp_path / "scripts"
    folder.mkdir()
    return folder
