"""The manifests with their real operators: ./inv dev kubernetes, on the cluster that KUBECONFIG names."""

import itertools
import json
import os
import re
import subprocess
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

import pytest
import yaml

from tests.image.train_runs import CONTEXT, reviews
from tooling.basis.identity import IDENTITY
from tooling.basis.paths import ROOT
from tooling.basis.yaml import render
from tooling.checks.on_kubernetes import VARIABLES
from tooling.kubernetes import manifest
from tooling.kubernetes.operators import Job as Request

IMAGE, NAMESPACE, CLAIM = (os.environ.get(name, "") for name in VARIABLES.values())
if not IMAGE:
    pytest.skip("KUBECONFIG names no cluster for these tests: see ./inv dev kubernetes", allow_module_level=True)
pytestmark = pytest.mark.timeout(1500)
# Of one wait: the nodes may have to pull the image.
LIMIT_SECONDS = 600.0
NAME = f"cts-{IDENTITY}-{os.getpid()}"
FOLDER = f"/pvc/{NAME}"
STEPS = 4
TRAIN = (
    *("train", f"--model_name_or_path={FOLDER}/tiny", f"--train_file={FOLDER}/train.csv", "--bf16"),
    *("--max_seq_length=32", "--logging_steps=1"),
)
SHORT, LONG = (*TRAIN, f"--max_steps={STEPS}"), (*TRAIN, "--max_steps=2000")
# By this step, an MPIJob's launcher knows that its ranks can save.
SAVABLE = "step 50/"
OPERATORS = {operator.__name__.lower(): operator for operator in get_args(Request)}
# The group and version, the launcher in result.json, and the log of rank 0 as docs/kubernetes.md has it.
KINDS = {
    "trainjob": ("trainer.kubeflow.org/v1alpha1", "torchrun", "--selector=job-name={}-node-0 --prefix --tail=-1"),
    "mpijob": ("kubeflow.org/v2beta1", "hydra", "job/{}-launcher"),
    "pytorchjob": ("kubeflow.org/v1", "torchrun", "{}-worker-0"),
}
# After the last collective, rank 0 works on.
LATE = """
import pathlib, sys, time, torch, torch.distributed as dist
dist.all_reduce(torch.ones(1))
if dist.get_rank() == 0:
    time.sleep(float(sys.argv[1]))
    if len(sys.argv) == 2:
        sys.exit("no space for the weights")
    pathlib.Path(sys.argv[2]).touch()
print("end of rank", dist.get_rank(), flush=True)
"""
# More than torch's own 300 s, after which its agents would end without rank 0.
LATE_SECONDS = "320"
_numbers = itertools.count()


@pytest.fixture(autouse=True)
def nothing_left() -> None:
    """In place of the clean-up of ./inv's clusters: these tests need no Docker."""


def kubectl(*words: str, text: str | None = None, check: bool = True) -> str:
    """What kubectl prints. `text`: its standard input."""
    argv = ["kubectl", f"--namespace={NAMESPACE}", *words]
    done = subprocess.run(argv, input=text, capture_output=True, text=True, check=False, timeout=LIMIT_SECONDS)
    assert done.returncode == 0 or not check, f"{words}: {done.stderr}"
    return done.stdout


def wait_until(found: Callable[[], Any], seen: Callable[[], str]) -> Any:
    """The first true value of `found`. `seen`: for the message if there is none."""
    end = time.monotonic() + LIMIT_SECONDS
    while not (value := found()):
        assert time.monotonic() < end, seen()
        time.sleep(1)
    return value


@dataclass(frozen=True)
class Job:
    kind: str
    request: Request

    @property
    def documents(self) -> list[dict[str, Any]]:
        return list(yaml.safe_load_all(render(manifest.documents(self.request))))

    @property
    def output(self) -> str:
        return f"{FOLDER}/{self.request.name}"

    @property
    def selector(self) -> str:
        """kubectl's option that chooses the pods."""
        return "--selector=" + ",".join(f"{key}={value}" for key, value in self.request.pod_labels.items())

    @property
    def resource(self) -> str:
        group, _, version = KINDS[self.kind][0].partition("/")
        return f"{self.kind}s.{version}.{group}"

    def read(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(kubectl("get", self.resource, self.request.name, "--output=json"))
        return found

    def ended(self) -> str:
        """Wait until the job has ended. Returns how: Complete, Succeeded or Failed."""

        def end() -> list[str]:
            conditions = self.read().get("status", {}).get("conditions", ())
            true = [one["type"] for one in conditions if one["status"] == "True"]
            return [name for name in ("Complete", "Succeeded", "Failed") if name in true]

        (found,) = wait_until(end, self.described)
        return str(found)

    def log(self) -> str:
        """The log as the documentation shows it; "" while there is none."""
        return kubectl("logs", *KINDS[self.kind][2].format(self.request.name).split(), check=False)

    def wait_for(self, pattern: str) -> re.Match[str]:
        found: re.Match[str] = wait_until(
            lambda: re.search(pattern, self.log()), lambda: f"{self.log()}\n{self.described()}"
        )
        return found

    def pods(self) -> list[str]:
        """The names of the pods in order."""
        return sorted(kubectl("get", "pods", self.selector, "--output=name").split())

    def described(self) -> str:
        """The pods and the job, with their events, as a user sees them."""
        pods = self.pods()
        described = kubectl("describe", *pods) if pods else ""
        return described + kubectl("describe", self.resource, self.request.name)


Files = Callable[..., str]
Start = Callable[..., Job]


@pytest.fixture(scope="module")
def files() -> Iterator[Files]:
    """Runs a command in the pod of the documentation that mounts the claim, with the tests' folder in it."""
    text = (ROOT / "docs" / "kubernetes.md").read_text()
    (block,) = re.findall(
        r"^ +apiVersion: v1\n +kind: Pod\n.*?claimName: training}}\n", text, re.DOTALL | re.MULTILINE
    )
    pod = yaml.safe_load(textwrap.dedent(block))
    pod["metadata"]["name"] = pod["spec"]["containers"][0]["name"] = f"{NAME}-files"
    pod["spec"]["containers"][0]["image"] = IMAGE
    pod["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"] = CLAIM

    def run(*argv: str, text: str | None = None) -> str:
        return kubectl("exec", "--stdin", f"{NAME}-files", "--", *argv, text=text)

    kubectl("create", "-f", "-", text=yaml.safe_dump(pod))
    try:
        kubectl("wait", "--for=condition=Ready", f"pod/{NAME}-files", f"--timeout={LIMIT_SECONDS}s")
        run("mkdir", FOLDER)
        script = (ROOT / "tests" / "image" / "tiny_model.py").read_text()
        run("python", "-", f"{FOLDER}/tiny", reviews(8).replace(",", " ") + CONTEXT, text=script)
        for name, written in (("train.csv", reviews(22)), ("late.py", LATE)):
            run("tee", f"{FOLDER}/{name}", text=written)
        yield run
        run("rm", "-r", FOLDER)
    finally:
        kubectl("delete", "pod", f"{NAME}-files", "--grace-period=1")


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    name = str(request.param)
    listed = kubectl("get", "--raw", f"/apis/{KINDS[name][0]}", check=False)
    if f'"name":"{name}s"' not in listed:
        pytest.skip(
            f"the cluster has no {OPERATORS[name].__name__} of {KINDS[name][0]}: its operator is not installed"
        )
    return name


def job_of(kind: str, *command: str, **options: Any) -> Job:
    """A job of two pods with a name of its own. Its output folder has the name, if it trains."""
    name = f"{NAME}-{next(_numbers)}"
    output = [f"--output_dir={FOLDER}/{name}"] if command[0] == "train" else []
    settings = {"nodes": 2, "cpus": 1, "memory": "3Gi", "pvc": CLAIM, "command": (*command, *output), **options}
    request = OPERATORS[kind](name=name, namespace=NAMESPACE, image=IMAGE, **settings)
    return Job(kind, request)


@pytest.fixture
def start(files: Files, kind: str) -> Iterator[Start]:
    """Creates a job: start("train", ..., max_restarts=0)."""
    started: list[Job] = []

    def create(*command: str, **options: Any) -> Job:
        job = job_of(kind, *command, **options)
        started.append(job)
        kubectl("create", "-f", "-", text=render(job.documents))
        return job

    yield create
    for job in started:
        kubectl("delete", "--ignore-not-found", "-f", "-", text=render(job.documents))
        kubectl("delete", "pods", job.selector, "--grace-period=1")  # they would write to the claim


def changes(ours: Any, theirs: Any, path: str = "") -> Iterator[str]:
    """The fields of a document that are not as we wrote them. Fields that were added do not count."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key, value in ours.items():
            yield from changes(value, theirs.get(key), f"{path}.{key}")
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for number, (own, their) in enumerate(zip(ours, theirs, strict=True)):
            yield from changes(own, their, f"{path}[{number}]")
    elif ours != theirs:
        yield f"{path}: {ours!r} became {theirs!r}"


def test_the_cluster_accepts_a_manifest_and_only_adds_defaults(kind: str) -> None:
    job = job_of(kind, *SHORT, env=("NOTE=$(date) costs $5",), grace_seconds=90)
    for document in job.documents:
        text, is_runtime = render([document]), document["kind"] == "TrainingRuntime"
        dry = ("create", "--dry-run=server", "--validate=strict", "--output=json", "-f", "-")
        assert [*changes(document, json.loads(kubectl(*dry, text=text)))] == []
        if is_runtime:  # a TrainJob is refused without it
            kubectl("create", "-f", "-", text=text)
    kubectl("delete", "--ignore-not-found", "-f", "-", text=render(job.documents))


def test_a_job_trains(start: Start, files: Files, kind: str) -> None:
    job = start(*SHORT)
    assert job.ended() in ("Complete", "Succeeded"), job.described()
    assert f"done: {STEPS} steps on 2 ranks (ccl)" in job.log()
    result = json.loads(files("cat", f"{job.output}/result.json"))
    assert (result["world_size"], result["nodes"], result["launcher"]) == (2, 2, KINDS[kind][1])
    assert (result["steps"], result["image"]) == (STEPS, IMAGE)


def test_invalid_input_fails_with_its_message(start: Start, kind: str) -> None:
    """A TrainJob fails at once. The others try again first."""
    job = start(*SHORT, "--model_name_or_pat=x", **({} if kind == "trainjob" else {"max_restarts": 1}))
    assert job.ended() == "Failed"
    assert "unknown flag --model_name_or_pat: did you mean" in job.described()
    if kind == "trainjob":
        status = json.loads(kubectl("get", "jobset", job.request.name, "--output=json"))["status"]
        assert status.get("restarts", 0) == 0


# The first pod of an MPIJob is that of the launcher.
each_end = pytest.mark.parametrize("number", [0, -1], ids=["the first pod", "the last pod"])


@each_end
def test_an_evicted_pod_saves_a_checkpoint_and_the_job_resumes(
    start: Start, files: Files, kind: str, number: int
) -> None:
    job = start(*LONG, "--save_steps=2000")
    job.wait_for(SAVABLE)
    pod = job.pods()[number].removeprefix("pod/")
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}}
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}/eviction"
    kubectl("create", "--raw", path, "-f", "-", text=json.dumps(eviction))
    saved = partial(re.findall, r"(?m)^checkpoint-(\d+)$")
    (step,) = wait_until(lambda: saved(files("ls", job.output)), job.described)
    job.wait_for(f"training: 2000 steps from step {step}, ranks: 2")
    if kind == "trainjob":
        status = json.loads(kubectl("get", "jobset", job.request.name, "--output=json"))["status"]
        assert (status["restarts"], status.get("restartsCountTowardsMax", 0)) == (1, 0)


@each_end
def test_a_job_resumes_after_the_loss_of_a_pod(start: Start, number: int) -> None:
    job = start(*LONG, "--save_steps=20")
    job.wait_for(SAVABLE)
    kubectl("delete", job.pods()[number], "--force", "--grace-period=0")
    job.wait_for(r"training: 2000 steps from step [2-9][0-9]+, ranks: 2")


def test_a_job_fails_if_rank_0_fails_last(start: Start) -> None:
    job = start("run", f"{FOLDER}/late.py", "10", max_restarts=0)
    assert job.ended() == "Failed"
    assert "no space for the weights" in job.described()


def test_rank_0_works_on_alone_after_the_other_ranks(start: Start, files: Files) -> None:
    job = start("run", f"{FOLDER}/late.py", LATE_SECONDS, f"{FOLDER}/weights")
    assert job.ended() in ("Complete", "Succeeded"), job.described()
    assert "end of rank 0" in job.log()
    assert files("ls", f"{FOLDER}/weights")
    files("rm", f"{FOLDER}/weights")
