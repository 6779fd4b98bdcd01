"""dockerd is killed while a cluster runs: the job fails, resumes from its checkpoint, and leaves nothing."""

import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.cluster.second_machine import SecondMachine
from tooling.image import base
from tooling.pins import parse

# What ./inv up does, with an image that is quick to copy to another engine. Without an image: starts the engine.
UP = """
import sys
from pathlib import Path
from invoke.exceptions import Exit
from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.say import say
from tooling.cluster import run, up, wait
from tooling.cluster.compose import ClusterSpec
from tooling.cluster.spec import Mount
from tooling.engine import api, start

folder, image, restarts, patience = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
start.LOG, start.STARTED = folder / "dockerd.log", folder / "dockerd.pid"
run.CLUSTERS = folder / "clusters"
wait.RETURN_SECONDS = patience
try:
    docker = api.ensure()
    if not image:
        sys.exit()
    output = run.writable_folder(folder / "output")
    mounts = (Mount(folder / "bin", "/usr/local/bin"), Mount(output, "/output", read_only=False))
    spec = ClusterSpec("lost", image, 2, 1, ("train",), mounts=mounts)
    outcome = up.run_with_restarts(lambda again: run.run(again, docker), spec, restarts)
    sys.exit(outcome.exit_code)
except UsageError as error:
    say(str(error))
    sys.exit(error.exit_code)
except Exit as error:
    say(str(error.message))
    sys.exit(error.code)
"""
# ./inv of a separate checkout, where no engine runs.
START = """
import sys
from pathlib import Path
from tooling.engine import api, start

folder = Path(sys.argv[1])
folder.mkdir()
start.LOG, start.STARTED = folder / "dockerd.log", folder / "dockerd.pid"
api.ensure()
"""
LAUNCH = """\
#!/bin/sh
while [ "$1" != -- ]; do shift; done
shift && exec "$@"
"""
# Each node has a checkpoint: the number of its last step.
TRAIN = """\
#!/bin/sh
own=/output/$(hostname)
step=$(cat $own 2>/dev/null || echo 0)
echo "starting at step $step"
until [ -e /output/end ]; do
    step=$((step + 1))
    echo $step > $own.draft && mv $own.draft $own
    echo "step $step"
    sleep 0.2
done
"""
# An engine that the user has chosen, which the tool does not start.
CHOSEN = {"DOCKER_HOST": "unix:///run/docker.sock"}
NOTHING: Mapping[str, str] = {}


class Job:
    """The cluster's command, and its engine: `start` runs `./inv up` in the background."""

    def __init__(self, machine: SecondMachine, image: str, folder: Path) -> None:
        self.machine, self.image, self.folder = machine, image, folder
        self.log = folder / "log.txt"
        (folder / "bin").mkdir()
        for name, text in {"launch": LAUNCH, "train": TRAIN}.items():
            (folder / "bin" / name).write_text(text)
            (folder / "bin" / name).chmod(0o755)
        folder.chmod(0o755)

    def start(
        self, environ: Mapping[str, str] = NOTHING, restarts: int = 0, patience: float = 60
    ) -> subprocess.Popen[bytes]:
        arguments = (str(self.folder), self.image, str(restarts), str(patience))
        self.running = self.machine.python(self.log, UP, *arguments, environ=environ)
        return self.running

    def start_engine(self) -> None:
        arguments = (str(self.folder), "", "0", "60")
        started = self.machine.python(self.folder / "engine.txt", UP, *arguments, environ={})
        assert started.wait(120) == 0, (self.folder / "engine.txt").read_text()

    def wait_for(self, condition: Callable[[str], bool]) -> None:
        deadline = time.monotonic() + 120
        while not condition(output := self.log.read_text()):
            assert self.running.poll() is None, output
            assert time.monotonic() < deadline, output
            time.sleep(0.1)

    def end(self) -> None:
        (self.folder / "output" / "end").touch()

    def left(self) -> list[str]:
        networks = self.machine.run("docker", "network", "ls", "--filter=name=^cts-", "--quiet")
        return [*self.machine.run("docker", "ps", "--all", "--quiet").split(), *networks.split()]


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    """A job on a second machine, with an engine that this checkout has started."""
    image = base.ensure(parse.load().pin()).reference
    machine = SecondMachine(tmp_path)
    try:
        made = Job(machine, image, tmp_path)
        made.start_engine()
        saved = subprocess.run(["docker", "save", image], capture_output=True, check=True, timeout=120).stdout
        machine.run("docker", "load", stdin=saved)
        yield made
    finally:
        machine.close()


@pytest.mark.timeout(600)
def test_a_killed_engine_is_restarted_and_the_job_resumes_from_its_checkpoint(job: Job) -> None:
    first = job.machine.engine
    running = job.start(restarts=1)
    job.wait_for(lambda output: "node-0 | step 5" in output and "node-1 | step 5" in output)
    job.machine.kill_engine()
    job.wait_for(lambda output: output.count("starting at step") == 4)
    job.end()
    assert running.wait(60) == 0, job.log.read_text()
    output = job.log.read_text()
    starts = [int(line.rpartition(" ")[2]) for line in output.splitlines() if "starting at step" in line]
    assert starts[:2] == [0, 0]
    assert min(starts[2:]) >= 5
    expected = ["does not answer", "starting dockerd", "the engine is back", "ended by signal 9", "restart 1 of 1"]
    assert [text for text in expected if text not in output] == []
    assert "Traceback" not in output
    assert job.machine.engine != first
    assert job.left() == []


@pytest.mark.timeout(600)
def test_an_engine_that_the_user_restarts_is_waited_for_and_the_exit_code_is_the_jobs(job: Job) -> None:
    running = job.start(CHOSEN)
    job.wait_for(lambda output: output.count("step 2") == 2)
    job.machine.kill_engine()
    job.wait_for(lambda output: "does not answer" in output)
    time.sleep(2)
    assert running.poll() is None
    assert "starting dockerd" not in job.log.read_text()
    job.start_engine()
    assert running.wait(60) == 137, job.log.read_text()
    assert job.left() == []

    # the engine does not come back
    running = job.start(CHOSEN, patience=3)
    job.wait_for(lambda output: output.count("starting at step") == 2)
    job.machine.kill_engine()
    assert running.wait(60) == 1, job.log.read_text()
    output = job.log.read_text()
    assert "the engine has not come back within 3 s" in output.splitlines()[-1]
    assert "Traceback" not in output

    # the next command removes the leftovers
    job.start_engine()
    assert job.left() != []
    job.end()
    assert job.start().wait(60) == 0, job.log.read_text()
    assert "removing the leftovers of an earlier cluster lost" in job.log.read_text()
    assert job.left() == []


@pytest.mark.timeout(300)
def test_two_checkouts_that_need_an_engine_at_the_same_time_start_one(tmp_path: Path) -> None:
    machine = SecondMachine(tmp_path)
    try:
        logs = [tmp_path / f"{name}.txt" for name in ("one", "other")]
        both = [machine.python(log, START, str(log.with_suffix("")), environ={}) for log in logs]
        codes = [process.wait(120) for process in both]
    finally:
        machine.close()
    printed = "".join(log.read_text() for log in logs)
    assert codes == [0, 0], printed
    assert printed.count("starting dockerd") == 1, printed
