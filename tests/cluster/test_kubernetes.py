"""The manifests' pods as real containers: with the names, variables and volumes that the operators add.

The network is private, its names are those that the cluster's DNS would have, and the folder behind the claim has
the group and mode that the kubelet gives it by fsGroup.
"""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from cpu_train_stack import contract
from tests import containers
from tests.cluster import pods
from tests.cluster.pod_cluster import NAMESPACE, REFERENCE, Cluster, cluster_of, ended, fill_claim, log, wait
from tests.cluster.pods import Document
from tooling.basis.yaml import render
from tooling.kubernetes.operators import Job

STEPS = 4
PODS: dict[str, Callable[..., list[pods.Pod]]] = {
    "pytorchjob": pods.pytorchjob_pods,
    "trainjob": pods.trainjob_pods,
}
# A folder's name with $( in it, which Kubernetes and a shell could each take for something else.
TRAIN = (
    *("train", "--model_name_or_path=/pvc/tiny", "--train_file=/pvc/train.csv"),
    *("--output_dir=/pvc/output/$(job)", "--bf16", f"--max_steps={STEPS}", "--max_seq_length=32"),
)


@pytest.fixture(autouse=True)
def nothing_left() -> None:
    """In place of the clean-up of ./inv's clusters: here is none. The fixture `image` looks for what is left."""


@pytest.fixture(scope="module")
def claim(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("claim")
    fill_claim(folder, tiny_model)
    return folder


@pytest.fixture
def cluster(image: str, claim: Path) -> Iterator[Cluster]:
    with cluster_of(image, claim) as started:
        yield started


def documents(kind: str, command: tuple[str, ...] = TRAIN, **options: Any) -> list[Document]:
    """The manifest of a job of two pods, as it is written."""
    operators = {operator.__name__.lower(): operator for operator in get_args(Job)}
    request = operators[kind](
        command=tuple(word.replace("$(job)", f"$(job)-{kind}") for word in command),
        name="bert",
        namespace=NAMESPACE,
        image=REFERENCE,
        nodes=2,
        cpus=1,
        memory="3Gi",
        node_cpus=os.cpu_count() or 1,
        pvc="training",
        secret_env=("HF_TOKEN=hub/token",),
        **options,
    )
    return list(yaml.safe_load_all(render(request.documents())))


def check(claim: Path, kind: str, launcher: str) -> None:
    """What rank 0 has left behind the claim; the job's name has come to it among the manifest's variables."""
    folder = claim / "output" / f"$(job)-{kind}"
    found: dict[str, Any] = json.loads((folder / "result.json").read_text())
    assert (found["world_size"], found["nodes"], found["backend"]) == (2, 2, "ccl")
    assert (found["launcher"], found["steps"], found["image"]) == (launcher, STEPS, REFERENCE)
    assert len(set(found["weights_sha256"])) == 1
    assert (folder / "_job").read_text().startswith(f"{NAMESPACE}/bert/")


def test_a_pytorchjobs_pods_train(cluster: Cluster) -> None:
    (job,) = documents("pytorchjob")
    names = [cluster.start(pod) for pod in reversed(pods.pytorchjob_pods(job))]
    wait(names)
    check(cluster.claim, "pytorchjob", "torchrun")
    assert "done: " in log(names[-1]), "rank 0 is not on the first worker"


# Rank 1 dies once, in the middle; its node's agent starts it again, and that of rank 0 has to find this out.
DIE_ONCE = """
import os, pathlib, signal, torch, torch.distributed as dist
total, mark = torch.ones(1), pathlib.Path("/pvc/died")
dist.all_reduce(total)
if dist.get_rank() == 1 and not mark.exists():
    mark.touch()
    os.kill(os.getpid(), signal.SIGKILL)
dist.all_reduce(total)
print(f"rank {dist.get_rank()}: {total.item():g}", flush=True)
"""


def test_a_pytorchjobs_ranks_start_again_in_their_pods(cluster: Cluster) -> None:
    (cluster.claim / "die_once.py").write_text(DIE_ONCE)
    (job,) = documents("pytorchjob", ("run", "/pvc/die_once.py"))
    names = [cluster.start(pod) for pod in pods.pytorchjob_pods(job)]
    wait(names)
    assert (cluster.claim / "died").is_file()
    assert ["rank 0: 4" in log(names[0]), "rank 1: 4" in log(names[1])] == [True, True]


# After the last collective, rank 0 works on and fails once.
FAIL_LATE = """
import pathlib, sys, time, torch, torch.distributed as dist
dist.all_reduce(torch.ones(1))
mark = pathlib.Path("/pvc/failed")
if dist.get_rank() == 0:
    time.sleep(3)
    if not mark.exists():
        mark.touch()
        sys.exit("no space for the weights")
    pathlib.Path("/pvc/weights").touch()
print("end of rank", dist.get_rank(), flush=True)
"""


@pytest.mark.parametrize(("kind", "restarts"), [("pytorchjob", 0), ("pytorchjob", 1), ("trainjob", 0)])
def test_a_job_succeeds_only_if_the_ranks_of_all_pods_do(cluster: Cluster, kind: str, restarts: int) -> None:
    """training-operator reports success as soon as one pod succeeds, and deletes the others."""
    (cluster.claim / "fail_late.py").write_text(FAIL_LATE)
    for name in ("failed", "weights"):
        (cluster.claim / name).unlink(missing_ok=True)
    jobs = documents(kind, ("run", "/pvc/fail_late.py"), max_restarts=restarts)
    codes = ended([cluster.start(pod) for pod in PODS[kind](*jobs)])
    assert (codes, (cluster.claim / "weights").exists()) == ([0, 0], True) if restarts else ([1, 1], False)


# If a flag is repeated, its last value counts.
LONG = (*TRAIN, "--output_dir=/pvc/long/$(job)", "--max_steps=1000", "--save_steps=1000", "--logging_steps=1")
# By this step, an MPIJob's launcher knows that its ranks can save: the watch of a node looks every 0.25 s.
SAVABLE = "step 50/"


def wait_for(names: list[str], text: str) -> None:
    """Wait until one of the pods has printed the text."""
    end = time.monotonic() + containers.TIMEOUT_SECONDS
    while not any(text in log(name) for name in names):
        assert time.monotonic() < end, "\n".join(map(log, names))
        time.sleep(0.2)


def drained(cluster: Cluster, names: list[str], folder: str, stopped: list[str]) -> int:
    """Stop pods while the ranks train, as a drain does. Returns the step of the checkpoint that they save."""
    wait_for(names, SAVABLE)
    subprocess.run(["docker", "stop", "--time=60", *stopped], check=True, capture_output=True, timeout=90)
    (checkpoint,) = (cluster.claim / "long" / folder).glob("checkpoint-*")
    return int(checkpoint.name.partition("-")[2])


@pytest.mark.parametrize(
    ("kind", "stopped"),
    [
        pytest.param("trainjob", [1], id="a pod of a TrainJob"),
        pytest.param("trainjob", [0, 1], id="a suspended TrainJob"),
        pytest.param("pytorchjob", [0], id="the first pod of a PyTorchJob"),
        pytest.param("pytorchjob", [1], id="the second pod of a PyTorchJob"),
        pytest.param("pytorchjob", [0, 1], id="a suspended PyTorchJob"),
    ],
)
def test_a_job_saves_its_work_on_a_drained_node_and_resumes(
    cluster: Cluster, kind: str, stopped: list[int]
) -> None:
    shutil.rmtree(cluster.claim / "long", ignore_errors=True)
    workers = PODS[kind](*documents(kind, LONG))
    names = [cluster.start(pod) for pod in workers]
    step = drained(cluster, names, f"$(job)-{kind}", [names[number] for number in stopped])
    # The rules for a TrainJob restart the job for this exit code, without counting it.
    assert ended(names) == [contract.STOPPED_EXIT_CODE] * 2
    # An operator creates pods again. The kubelet starts the container of a PyTorchJob's other pod again.
    for number, worker in enumerate(workers):
        if kind == "pytorchjob" and number not in stopped:
            subprocess.run(["docker", "start", names[number]], check=True, capture_output=True, timeout=60)
        else:
            names[number] = cluster.start(worker)
    wait_for(names[:1], f"training: 1000 steps from step {step}, ranks: 2")


def test_a_trainjobs_pods_train(cluster: Cluster) -> None:
    runtime, job = documents("trainjob")
    wait([cluster.start(pod) for pod in pods.trainjob_pods(runtime, job)])
    check(cluster.claim, "trainjob", "torchrun")


@pytest.mark.parametrize("openshift", [False, True], ids=["own user", "openshift"])
def test_an_mpijobs_pods_train(cluster: Cluster, tmp_path: Path, openshift: bool) -> None:
    passwd = tmp_path / "passwd"
    passwd.write_text(pods.OPENSHIFT_LINE)
    added = {"/etc/passwd": passwd} if openshift else {}
    shutil.rmtree(cluster.claim / "output", ignore_errors=True)  # of another user
    workers, launcher = mpijob_pods(cluster, tmp_path, openshift=openshift)
    names = [cluster.start(replace(pod, folders={**pod.folders, **added})) for pod in (*workers, launcher)]
    wait(names[-1:])
    check(cluster.claim, "mpijob", "hydra")
    result = cluster.claim / "output" / "$(job)-mpijob" / "result.json"
    assert result.stat().st_uid == (pods.OPENSHIFT_USER if openshift else 1000)
    assert "hf_secret" not in log(names[-1])


def mpijob_pods(
    cluster: Cluster, folder: Path, command: tuple[str, ...] = TRAIN, **options: Any
) -> tuple[list[pods.Pod], pods.Pod]:
    """The workers and the launcher of a job, with a key and a hostfile in `folder`."""
    keys, config = folder / "keys", folder / "config"
    for made in (keys, config):
        made.mkdir()
    make_keys(cluster.image, keys)
    (job,) = documents("mpijob", command, **options)
    return pods.mpijob_pods(job, keys, config)


def make_keys(image: str, folder: Path) -> None:
    """A secret as the operator makes it: an ECDSA key under RSA's name, readable by all, and nothing else."""
    folder.chmod(0o777)
    make = 'cd /keys && ssh-keygen -q -t ecdsa -b 521 -m PEM -N "" -f id_rsa && cp id_rsa.pub authorized_keys'
    made = containers.run(image, "sh", "-c", make, docker_args=[f"--volume={folder}:/keys"])
    assert made.returncode == 0, made.stderr
    for path in folder.iterdir():
        os.chown(path, 0, 1000)
        path.chmod(0o644)


@pytest.mark.parametrize(
    "stopped", [slice(2, 3), slice(1, 2), slice(0, 3)], ids=["the launcher", "a worker", "all"]
)
def test_an_mpijobs_ranks_save_their_work_on_a_drained_node_and_resume(
    cluster: Cluster, tmp_path: Path, stopped: slice
) -> None:
    shutil.rmtree(cluster.claim / "long", ignore_errors=True)
    workers, launcher = mpijob_pods(cluster, tmp_path, LONG)
    names = [cluster.start(pod) for pod in (*workers, launcher)]
    step = drained(cluster, names[-1:], "$(job)-mpijob", names[stopped])
    assert ended(names[-1:]) == [contract.STOPPED_EXIT_CODE]
    # The operator creates the drained workers again, and the launcher in any case.
    again = [cluster.start(pod) for pod in (*workers[stopped], launcher)]
    wait_for(again[-1:], f"training: 1000 steps from step {step}, ranks: 2")


def test_an_mpijobs_next_launcher_waits_for_ranks_that_save_and_resumes(cluster: Cluster, tmp_path: Path) -> None:
    """The Job of a launcher replaces it as soon as the drain begins."""
    shutil.rmtree(cluster.claim / "long", ignore_errors=True)
    workers, launcher = mpijob_pods(cluster, tmp_path, LONG)
    names = [cluster.start(pod) for pod in (*workers, launcher)]
    wait_for(names[-1:], SAVABLE)
    subprocess.run(["docker", "pause", names[1]], check=True, capture_output=True, timeout=60)  # saving takes long
    stopped = subprocess.Popen(["docker", "stop", "--time=60", names[-1]], stdout=subprocess.DEVNULL)
    wait_for(names[-1:], "SIGTERM: the ranks save a checkpoint")
    again = cluster.start(launcher)
    wait_for([again], "are still saving a checkpoint: waiting for them")
    subprocess.run(["docker", "unpause", names[1]], check=True, capture_output=True, timeout=60)
    assert stopped.wait(90) == 0
    assert ended(names[-1:]) == [contract.STOPPED_EXIT_CODE]
    (checkpoint,) = (cluster.claim / "long" / "$(job)-mpijob").glob("checkpoint-*")
    wait_for([again], f"training: 1000 steps from step {checkpoint.name.partition('-')[2]}, ranks: 2")
