"""The slowest rank of a real job is named with the cause, and no rank while all are well.

One job of two nodes goes through phases. In each of them, something else slows down node 1.
"""

import errno
import functools
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from cpu_train_stack.records import job, stragglers
from cpu_train_stack.records.job import RecordedJob
from cpu_train_stack.records.stragglers import Straggler
from tests.cluster.conftest import Running, no_cluster_left

PHASES = ("healthy", "longer rows", "reading", "quota", "shared cores")
STEPS = 20  # per phase
# Of the processor, so that containers of other tests slow down this job less.
PRIORITY = "--cpu-shares=8192"
SCRIPT = f"""
import mmap, os, random, time
from pathlib import Path
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments

PHASES, STEPS, ROWS = {PHASES}, {STEPS}, Path("/data/rows.bin")
is_slow = os.environ["RANK"] == "1"
phase = PHASES[0]
file = os.open(ROWS, os.O_RDONLY | os.O_DIRECT)
buffer = mmap.mmap(-1, 1 << 16)


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 10_000

    def __getitem__(self, row):
        os.preadv(file, [buffer], random.randrange(64) << 16)
        tokens = 180 if is_slow and phase == "longer rows" else 60
        return {{"input_ids": torch.arange(1, tokens + 1), "labels": torch.tensor(row % 2)}}


class Phases(TrainerCallback):
    def on_step_begin(self, args, state, control, **options):
        global phase
        if state.global_step % STEPS == 0:
            phase = PHASES[state.global_step // STEPS]
            print(f"phase: {{phase}}", flush=True)
            while not Path("/output", phase).exists():
                time.sleep(0.05)


torch.manual_seed(0)
config = BertConfig(hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024)
arguments = TrainingArguments(
    "/output", max_steps=STEPS * len(PHASES), per_device_train_batch_size=8, save_strategy="no", report_to=[],
    disable_tqdm=True,
)
Trainer(
    model=BertForSequenceClassification(config), args=arguments, train_dataset=Rows(), callbacks=[Phases()]
).train()
"""


def docker(*arguments: str) -> str:
    return subprocess.run(
        ["docker", *arguments], capture_output=True, text=True, check=True, timeout=60
    ).stdout.strip()


@contextmanager
def quota(container: str) -> Iterator[None]:
    docker("update", "--cpus=0.15", container)  # for long steps: a rank looks at its pauses every five seconds
    yield
    docker("update", f"--cpus={os.cpu_count()}", container)


@contextmanager
def busy_neighbour(container: str, image: str) -> Iterator[None]:
    """Another container that computes on the same core."""
    cores = docker("inspect", "--format", "{{.HostConfig.CpusetCpus}}", container)
    loop = ("--entrypoint=python", image, "-c", "import os; os.fork(); exec('while True: pass')")
    neighbour = docker("run", "--detach", PRIORITY, f"--cpuset-cpus={cores}", *loop)
    yield
    docker("rm", "--force", neighbour)


@contextmanager
def slow_disk(container: str, folder: Path) -> Iterator[bool]:
    """Limit the container's reads from the folder to 2 MiB a second. False if the kernel cannot: in an overlay."""
    number = folder.stat().st_dev
    device, limit = f"{os.major(number)}:{os.minor(number)}", 2 << 20
    name = docker("inspect", "--format", "{{.Id}}", container)
    version_1 = Path(f"/sys/fs/cgroup/blkio/docker/{name}/blkio.throttle.read_bps_device")
    version_2 = next(Path("/sys/fs/cgroup").glob(f"**/*{name}*/io.max"), None)
    file, on, off = (
        (version_1, f"{device} {limit}\n", f"{device} 0\n")
        if version_1.exists()
        else (version_2, f"{device} rbps={limit}\n", f"{device} rbps=max\n")
    )
    try:
        if file is not None:
            file.write_text(on)
    except OSError as error:
        if error.errno != errno.ENODEV:
            raise
        file = None
    yield file is not None
    if file is not None:
        file.write_text(off)


@pytest.fixture(scope="module")
def phases(image: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[RecordedJob, bool]:
    """The records of the job, and whether the disk was slow in its phase."""
    folder = tmp_path_factory.mktemp("stragglers")
    data, output = folder / "data", folder / "output"
    data.mkdir()
    (data / "phases.py").write_text(SCRIPT)
    (data / "rows.bin").write_bytes(os.urandom(64 << 16))
    with no_cluster_left():
        running = Running(
            *(
                "stragglers",
                folder / "log",
                "--nodes=2",
                f"--data={data}",
                f"--output={output}",
                "--env=OMP_NUM_THREADS=1",
            ),
            *("--", "run", "--quiet", "/data/phases.py"),
        )
        disturbance, is_slow = ExitStack(), False
        try:
            for phase in PHASES:
                running.wait_for(functools.partial(has_begun, phase))
                disturbance.close()
                node = docker("ps", "--filter=name=stragglers-node-1", "--format={{.Names}}")
                if phase == "reading":
                    is_slow = disturbance.enter_context(slow_disk(node, data))
                elif phase == "quota":
                    disturbance.enter_context(quota(node))
                elif phase == "shared cores":
                    disturbance.enter_context(busy_neighbour(node, image))
                docker("update", PRIORITY, *docker("ps", "--quiet", "--filter=name=stragglers-node-").split())
                (output / phase).touch()
            assert running.wait() == 0, running.output()
        finally:
            disturbance.close()
            if running.process.poll() is None:
                running.process.terminate()
                running.process.wait(60)
    return job.read(output), is_slow


def has_begun(phase: str, text: str) -> bool:
    return text.count(f"phase: {phase}") == 2


def straggler(found: RecordedJob, phase: str) -> Straggler | None:
    """The slowest rank in a phase, without its first steps."""
    begin = PHASES.index(phase) * STEPS + 2
    ranks = {}
    for number, rank in found.ranks.items():
        steps = [one for one in rank.steps if begin < one.step <= begin + STEPS - 3]
        samples = [one for one in rank.samples if steps[0].step <= one.step <= steps[-1].step]
        ranks[number] = replace(rank, steps=steps, samples=samples)
    return stragglers.find(replace(found, ranks=ranks))


@pytest.mark.parametrize("phase", PHASES)
def test_the_slowest_rank_is_named_with_the_cause(phase: str, phases: tuple[RecordedJob, bool]) -> None:
    recorded, is_slow = phases
    if phase == "reading" and not is_slow:
        pytest.skip("the kernel cannot slow down reads of the data folder: it is not on a disk")
    found = straggler(recorded, phase)
    print(found.text if found else "none")
    if phase == "healthy":  # but other tests run on the same cores, and slow down memory, which no counter shows
        assert found is None or found.cause in ("shared cores", "unknown")
    else:
        assert found is not None
        assert (found.rank, found.cause) == (1, phase)
