"""`./inv launch` on three hosts over ssh: both launchers, what is refused, and that nothing is left behind."""

import contextlib
import fcntl
import json
import os
import pty
import re
import shutil
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cpu_train_stack import contract
from tests import containers, registry, second_engine
from tests.cluster import bare_hosts
from tests.cluster.bare_hosts import Machines
from tooling.basis.identity import IDENTITY
from tooling.basis.paths import ROOT
from tooling.engine import api
from tooling.hosts import record
from tooling.hosts.commands import labels
from tooling.image import lock as image_lock
from tooling.image.lock import ImageLock
from tooling.image.registry import Registry, Target

ROWS = "text,label\n" + "".join(f"{word} film,{number % 2}\n" for number, word in enumerate("abcdefghijkl"))
SHOW = """
import os, socket, torch, torch.distributed as dist
total = torch.ones(1)
dist.all_reduce(total)
if dist.get_rank() == 1:
    print("one of the others says", os.environ["WANTED"], flush=True)
dist.barrier()
if dist.get_rank() == 0:
    print("the sum is", total.item(), "TOKEN has", len(os.environ["TOKEN"]), flush=True)
"""
STEPS = 30
UNSEEN = "a token with 'quotes' and $signs"


@pytest.fixture(scope="module")
def machines(image: str, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    """Three hosts, and a tiny model and rows in the folder that they share."""
    containers.build(bare_hosts.IMAGE, bare_hosts.DOCKERFILE)
    made = Machines(tmp_path_factory.mktemp("machines"))
    try:
        for number, name in enumerate(("alpha", "beta", "gamma")):
            made.start(name, 2201 + number)
        shutil.copytree(tiny_model, made.shared / "tiny")
        (made.shared / "rows.csv").write_text(ROWS)
        (made.shared / "show.py").write_text(SHOW)
        made.wait()
        made.configure({})
        yield made
    finally:
        made.close()


def running(*names: str) -> list[str]:
    """The containers of this checkout's jobs of those names, whatever their state."""
    found = []
    for name in names:
        filters = [word for label in labels(name) for word in ("--filter", f"label={label}")]
        argv = ["docker", "ps", "--all", *filters, "--format", "{{.Names}}"]
        found += subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60).stdout.split()
    return found


@pytest.fixture(autouse=True)
def nothing_left(machines: Machines) -> Iterator[None]:
    """Fails a test that leaves a container of its jobs behind."""
    yield
    left = running(*machines.jobs)
    for name in left:
        bare_hosts.docker("rm", "--force", "--volumes", name)
    assert left == []


def watched(machines: Machines, name: str) -> bytes:
    """What ./inv watch shows of a job on a terminal of 100 x 30, until the job ends."""
    deadline = time.monotonic() + 120
    while len(running(name)) < len(machines.hosts):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    with subprocess.Popen(
        [str(ROOT / "inv"), "watch", f"--name={name}"], cwd=machines.folder,
        env=machines.environ(TERM="xterm-256color"), stdin=theirs, stdout=theirs, stderr=theirs,
        start_new_session=True,
    ) as watch:  # fmt: skip
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # the other end is closed
            while chunk := os.read(ours, 1 << 16):
                shown += chunk
    os.close(ours)
    assert watch.returncode == 0, shown.decode(errors="replace")
    return shown


@pytest.mark.parametrize("launcher", ["torchrun", "mpirun"])
def test_three_hosts_train_together(machines: Machines, launcher: str) -> None:
    output = machines.shared / launcher
    started = machines.launch(
        *("launch", f"--hosts={machines.file('alpha slots=1', 'beta:1', 'op@gamma slots = 1 # the third')}"),
        *(f"--launcher={launcher}", f"--name=train-{launcher}", f"--data={machines.shared}"),
        *(f"--output={output}", "--env=HF_HUB_OFFLINE=1", "--env=OMP_NUM_THREADS=1", "--"),
        *("train", "--model_name_or_path=/data/tiny"),
        *("--train_file=/data/rows.csv", "--output_dir=/output", "--do_train", f"--max_steps={STEPS}"),
        *("--per_device_train_batch_size=2", "--eval_strategy=no", "--save_strategy=no"),
    )
    with started:
        shown = watched(machines, f"train-{launcher}") if launcher == "torchrun" else b""
        stdout, stderr = started.communicate(timeout=300)
    assert started.returncode == 0, stdout + stderr
    if shown:  # the view on a terminal, with a bar for each rank
        assert b"\x1b[?1049h" in shown
        assert b"rank 2" in shown, shown.decode(errors="replace")
    result = json.loads((output / "result.json").read_text())
    assert (result["backend"], result["nodes"], result["world_size"], result["steps"]) == ("ccl", 3, 3, STEPS)
    assert result["launcher"] == ("hydra" if launcher == "mpirun" else "torchrun")
    assert len(set(result["weights_sha256"])) == 1
    assert f"alpha: {machines.hosts['alpha'].address} on eth0" in stderr
    log = record.log_of(f"train-{launcher}").read_text()
    first = "alpha | [0]" if launcher == "mpirun" else "alpha | "
    assert first in log
    assert set(stdout.splitlines()) <= set(log.splitlines())


def test_a_job_is_left_running_shown_refused_again_and_stopped(machines: Machines) -> None:
    hosts = f"--hosts={machines.file('alpha', 'beta', 'gamma')}"
    options = (hosts, "--name=held", f"--output={machines.shared / 'held'}", f"--data={machines.shared}")
    command = ("--env=TOKEN", "--env=WANTED=yes", "--detach", "--", "sh", "-c", "echo $WANTED $TOKEN; sleep 600")
    started = machines.inv("launch", *options, *command, TOKEN=UNSEEN)
    try:
        assert started.returncode == 0, started
        seen = machines.commands.read_bytes()
        for index in range(3):
            assert f"--name=cts-job-{IDENTITY}-held-{index}".encode() in seen
        assert UNSEEN.encode() not in seen
        assert_no_file_has_the_secret(machines)
        again = machines.inv("launch", *options, "--", "true")
        assert (again.returncode, again.stderr.count("\n")) == (contract.USAGE_EXIT_CODE, 1), again
        assert "job held is running" in again.stderr
        # Without a record, as after rm -r .cache, it is known from the hosts themselves.
        file = record.folder_of("held") / "job.json"
        text = file.read_text()
        file.unlink()
        elsewhere = machines.inv("launch", *options, "--", "true")
        file.write_text(text)
        assert (elsewhere.returncode, elsewhere.stderr.count("a job held is running")) == (
            contract.USAGE_EXIT_CODE,
            3,
        )
        shown = machines.inv("status", "--name=held").stdout
        assert shown.count("running") == 3
        assert re.search(rf"gamma .*cts-job-{IDENTITY}-held-2 .*running", shown)
        deadline = time.monotonic() + 60
        while (output := machines.inv("logs", "--name=held").stdout).count(f"yes {UNSEEN}") < 3:
            assert time.monotonic() < deadline, output
            time.sleep(0.5)
    finally:
        ended = machines.inv("stop", "--name=held")
    assert ended.returncode == 0, ended.stderr
    assert running("held") == []
    assert sorted(machines.inv("logs", "--name=held").stdout.splitlines()) == [
        f"{name} | yes {UNSEEN}" for name in machines.hosts
    ]
    assert "ended, exit code 143" in machines.inv("status", "--name=held").stdout


def assert_no_file_has_the_secret(machines: Machines) -> None:
    """No file of a host's user, and none of the job's record."""
    for host in machines.hosts.values():
        found = bare_hosts.docker(
            "exec", host.container, "sh", "-c", "grep -rlF 'a token with' /home /tmp || true"
        )
        assert found == ""
    for file in record.folder_of("held").rglob("*"):
        assert UNSEEN not in file.read_text()


@pytest.mark.parametrize(
    ("launcher", "number", "code"),
    [("mpirun", signal.SIGINT, 130), ("torchrun", signal.SIGKILL, -signal.SIGKILL)],
    ids=["ctrl-c", "killed"],
)
def test_nothing_outlives_the_command_that_watches_a_job(
    machines: Machines, launcher: str, number: signal.Signals, code: int
) -> None:
    """A killed ./inv cleans up nothing: the hosts notice the end of its session."""
    name = f"cut-{launcher}"
    options = (f"--launcher={launcher}", f"--name={name}", f"--output={machines.shared / 'cut'}")
    hosts = f"--hosts={machines.file('alpha', 'beta', 'gamma')}"
    process = machines.launch("launch", hosts, *options, "--", "sh", "-c", "echo begun; sleep 600")
    try:
        assert process.stdout is not None
        assert "begun" in process.stdout.readline()
        assert len(running(name)) == 3
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == code, out + err
    deadline = time.monotonic() + 30
    while code < 0 and running(name) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert running(name) == []
    assert "Traceback" not in err


def test_a_host_that_fails_ends_the_job_with_its_code_and_shows_all_of_its_output(machines: Machines) -> None:
    script = "for line in 1 2 3 4 5 6; do echo line $line; done; [ $RANK = 0 ] && sleep 600; exit 7"
    hosts = f"--hosts={machines.file('alpha', 'beta')}"
    done = machines.inv(
        "launch", hosts, "--name=fails", f"--output={machines.shared / 'f'}", "--", "sh", "-c", script
    )
    assert done.returncode == 7, done.stdout + done.stderr
    assert [f"beta | line {number}" for number in range(1, 7)] == [
        line for line in done.stdout.splitlines() if line.startswith("beta | line")
    ]
    assert "beta exited with code 7" in done.stderr


@pytest.fixture
def unfit(machines: Machines, tmp_path: Path) -> Iterator[None]:
    """More hosts: `bare` without an image, `other` with another CPU, `changed` with another key, `down`."""
    first = Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
    (tmp_path / "cpuinfo").write_text(first.replace(" avx2 ", " ") + "\n\n")
    with second_engine.running(tmp_path) as engine_without_image:
        machines.start("bare", 2210, engine_without_image)
        machines.start("other", 2211, mounts={str(tmp_path / "cpuinfo"): "/proc/cpuinfo:ro"})
        machines.start("changed", 2212)
        machines.wait()
        subnet = machines.hosts["alpha"].address.rpartition(".")[0]
        machines.configure({"down": f"{subnet}.250"}, changed=["changed"])
        yield
        for name in ("bare", "other", "changed"):
            bare_hosts.docker("rm", "--force", "--volumes", machines.hosts.pop(name).container)
        machines.configure({})


def test_each_unfit_host_is_one_line_and_nothing_starts(machines: Machines, unfit: None, tmp_path: Path) -> None:
    lock = tmp_path / "image.lock.json"
    options = (f"--image-lock={lock}", "--name=unfit", f"--output={machines.shared / 'unfit'}", "--", "true")
    tag = containers.unique_name()
    made = bare_hosts.docker("import", "-", f"{tag}:made", stdin=bytes(10240))
    try:
        with registry.running() as (address, _):
            opened = Registry(api.ensure().endpoint, Target.parse(f"{address}/stack"))
            reference = f"{address}/stack@{opened.push(made, '1')}"
            image_lock.write(ImageLock(reference, f"{address}/stack:1", "2.13", "", {}, "0" * 64), lock)
            # A host pulls a missing image. This image is empty: only the start of the container fails.
            for named in (options, (f"--image={reference}", *options[1:])):
                bare_hosts.docker("image", "rm", "--force", made)
                pulled = machines.inv("launch", f"--hosts={machines.file('alpha')}", *named)
                assert pulled.returncode == contract.USAGE_EXIT_CODE
                assert "alpha: its container cannot be started: " in pulled.stderr.splitlines()[-1], pulled.stderr
        hosts = ["alpha", "nowhere.invalid", "bare", "down", "other", "changed", "beta"]
        done = machines.inv("launch", f"--hosts={machines.file(*hosts)}", *options)
    finally:
        subprocess.run(["docker", "image", "rm", "--force", made], capture_output=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (contract.USAGE_EXIT_CODE, "")
    lines = done.stderr.splitlines()[1:]
    assert [line.partition(":")[0] for line in lines] == hosts[1:-1], done.stderr
    reasons = ["does not resolve", "is missing and cannot be pulled", "cannot be reached|does not answer"]
    reasons += ["its CPU lacks avx2, compared with alpha", "has CHANGED"]
    for line, reason in zip(lines, reasons, strict=True):
        assert re.search(reason, line), done.stderr


def test_a_key_that_is_not_known_is_refused(machines: Machines) -> None:
    known = machines.home / ".ssh" / "known_hosts"
    text = known.read_text()
    known.write_text("".join(text.splitlines(keepends=True)[1:]))
    done = machines.inv("launch", f"--hosts={machines.file('alpha', 'beta')}", "--name=unknown", "--", "true")
    assert (done.returncode, len(done.stderr.splitlines())) == (contract.USAGE_EXIT_CODE, 2)
    assert re.match("alpha: the host key of .* is not known", done.stderr.splitlines()[1])
    assert known.read_text() == "".join(text.splitlines(keepends=True)[1:])
    known.write_text(text)
