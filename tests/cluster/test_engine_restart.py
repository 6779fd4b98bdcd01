"""`./inv launch` while Docker is stopped or restarted on one of its hosts, which has a separate engine."""

import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import containers, second_engine
from tests.cluster import bare_hosts
from tests.cluster.bare_hosts import Machines
from tests.second_engine import SecondEngine
from tooling.hosts import record
from tooling.pins import parse

# Replaces the stack's image, which is too large to copy to other engines: prints until /output/end exists.
DOCKERFILE = """\
FROM {base}
ENTRYPOINT ["sh", "-c", "{script}"]
"""
SCRIPT = (
    "trap 'exit 5' TERM; i=0; while [ ! -e /output/end ]; "
    "do i=$((i+1)); echo line $i; sleep 0.1; done; echo the end after $i"
)
# Without a limit, a hanging test would wait forever.
pytestmark = pytest.mark.timeout(180, func_only=True)


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Machines, SecondEngine, SecondEngine]]:
    """Two hosts, and the engine of each."""
    containers.build(bare_hosts.IMAGE, bare_hosts.DOCKERFILE)
    folders = [tmp_path_factory.mktemp(name) for name in ("alpha", "beta", "machines")]
    made = Machines(folders[2])
    tag = f"{containers.unique_name()}:made"
    try:
        with second_engine.running(folders[0]) as alpha, second_engine.running(folders[1]) as beta:
            _copy_image(tag, alpha, beta)
            made.start("alpha", 2201, alpha)
            made.start("beta", 2202, beta)
            made.wait()
            made.configure({})
            yield made, alpha, beta
    finally:
        made.close()
        subprocess.run(["docker", "image", "rm", tag], capture_output=True, check=False, timeout=60)


def _copy_image(tag: str, *engines: SecondEngine) -> None:
    containers.build(tag, DOCKERFILE, script=SCRIPT)
    saved = subprocess.run(["docker", "save", tag], capture_output=True, check=True, timeout=120).stdout
    for engine in engines:
        engine.docker("load", stdin=saved)
        engine.docker("tag", tag, parse.load().pin().image)


class Job:
    """A `./inv launch` on both hosts that has printed something on both."""

    def __init__(self, machines: Machines, name: str) -> None:
        self.name, self.output = name, machines.shared / name
        options = (f"--hosts={machines.file('alpha', 'beta')}", f"--name={name}", f"--output={self.output}")
        self.process = machines.launch("launch", *options, "--", "true")
        self.wait_for("beta | line 3\n")

    def log(self) -> str:
        file = record.log_of(self.name)
        return file.read_text() if file.is_file() else ""

    def wait_for(self, text: str) -> None:
        deadline = time.monotonic() + 60
        while text not in self.log():
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.1)

    def end(self) -> tuple[int, str]:
        """The exit code and the standard error of ./inv, which must end without a signal."""
        try:
            _, err = self.process.communicate(timeout=60)
        finally:
            self.process.kill()
        return self.process.returncode, err


@pytest.fixture(autouse=True)
def no_old_log() -> None:
    for name in ("restarted", "restored", "stopped"):
        record.log_of(name).unlink(missing_ok=True)


def test_a_restart_of_docker_that_ends_a_container_ends_the_job(
    machines: tuple[Machines, SecondEngine, SecondEngine],
) -> None:
    """After a crash, because an orderly restart reports the container's end first."""
    hosts, alpha, beta = machines
    job = Job(hosts, "restarted")
    beta.end(signal.SIGKILL)
    beta.start()
    code, err = job.end()
    assert code == 5, err
    assert "beta exited with code 5" in err
    assert alpha.docker("ps", "--all", "--quiet") == beta.docker("ps", "--all", "--quiet") == ""


def test_a_restart_of_docker_that_leaves_containers_running_loses_nothing(
    machines: tuple[Machines, SecondEngine, SecondEngine],
) -> None:
    hosts, alpha, beta = machines
    beta.end()
    beta.start("--live-restore")
    try:
        job = Job(hosts, "restored")
        beta.end()
        before = job.log().count("beta | line")
        time.sleep(1)  # the container keeps running
        beta.start("--live-restore")
        job.wait_for(f"beta | line {before + 20}\n")
        (job.output / "end").touch()
        code, err = job.end()
    finally:
        (job.output / "end").unlink(missing_ok=True)
    assert code == 0, err
    lines = [line for line in job.log().splitlines() if line.startswith("beta | ") and "EOF" not in line]
    count = len(lines) - 1
    assert lines == [*(f"beta | line {number}" for number in range(1, count + 1)), f"beta | the end after {count}"]
    assert alpha.docker("ps", "--all", "--quiet") == beta.docker("ps", "--all", "--quiet") == ""


def test_a_container_is_removed_when_docker_is_back(
    machines: tuple[Machines, SecondEngine, SecondEngine], tmp_path: Path
) -> None:
    hosts, _, beta = machines
    job = Job(hosts, "stopped")
    beta.end(signal.SIGKILL)
    job.process.send_signal(signal.SIGINT)
    time.sleep(2)
    beta.start()
    code, err = job.end()
    assert code == 130, err
    assert beta.docker("ps", "--all", "--quiet") == "", err
