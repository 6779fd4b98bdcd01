"""Manifests: golden files, the operators' own models, the schemas of Kubernetes, and the rules of the webhooks.

MANIFESTS=write in the environment of this test rewrites the golden files.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import kubeflow.training
import kubeflow_trainer_api.models as trainer_models
import kubernetes_validate
import pytest
import yaml

from entrypoints.launch import options
from entrypoints.launch.mpi.command import parse as parse_mpi_launch
from tests.unit.tooling.image.examples import LOCK
from tooling.basis.errors import UsageError
from tooling.basis.yaml import render
from tooling.image import lock
from tooling.kubernetes import manifest
from tooling.kubernetes.operators import Job
from tooling.kubernetes.request import CLAIM

Document = dict[str, Any]

GOLDEN = Path(__file__).parent / "manifests"
OPERATORS = {operator.__name__.lower(): operator for operator in get_args(Job)}
KINDS = tuple(OPERATORS)
IMAGE = "registry.example:5000/team/cpu-train-stack@sha256:" + "1" * 64
COMMAND = ("train", "--model_name_or_path", "bert-base-uncased", "--output_dir", "/pvc/output/bert", "--bf16")
OPTIONS: dict[str, Any] = {
    "command": COMMAND,
    "name": "bert",
    "namespace": "ml",
    "image": IMAGE,
    "nodes": 4,
    "cpus": 60,
    "memory": "128Gi",
    "pvc": "training",
    "node_selector": ("node-type=gnr", "example.com/pool="),
    "env": ("HF_HUB_OFFLINE=1", "NOTE=$(date) costs $5"),
    "secret_env": ("HF_TOKEN=hub/token",),
    "pull_secret": "registry",
    "node_cpus": 128,
}


def request(kind: str, **changes: Any) -> Job:
    job: Job = OPERATORS[kind](**{**OPTIONS, **changes})
    return job


def rendered(kind: str, **changes: Any) -> str:
    return render(request(kind, **changes).documents())


def documents(kind: str, **changes: Any) -> list[Document]:
    """The manifest, parsed."""
    return list(yaml.safe_load_all(rendered(kind, **changes)))


def templates(kind: str, **changes: Any) -> list[Document]:
    """The pod templates of a manifest."""
    last = documents(kind, **changes)
    if kind == "trainjob":
        (job,) = last[0]["spec"]["template"]["spec"]["replicatedJobs"]
        return [job["template"]["spec"]["template"]]
    return [one["template"] for one in replicas(last[0]).values()]


def replicas(job: Document) -> dict[str, Document]:
    found: dict[str, Document] = job["spec"].get("pytorchReplicaSpecs") or job["spec"]["mpiReplicaSpecs"]
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_the_manifest_equals_the_golden_file(kind: str) -> None:
    text = rendered(kind)
    file = GOLDEN / f"{kind}.yaml"
    if os.environ.get("MANIFESTS") == "write":
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")


def of_training_operator(document: Document, model: str) -> Document:
    """The document as the operator's own Python client reads it and writes it again."""
    client = kubeflow.training.ApiClient()
    read = client.deserialize(SimpleNamespace(data=json.dumps(document)), model)
    written: Document = client.sanitize_for_serialization(read)
    return written


def test_a_pytorchjob_has_only_fields_of_the_operators_model() -> None:
    (job,) = documents("pytorchjob")
    assert of_training_operator(job, "KubeflowOrgV1PyTorchJob") == job
    job["spec"]["elasticPolicy"]["minReplica"] = 1
    assert of_training_operator(job, "KubeflowOrgV1PyTorchJob") != job, "the model does not notice a wrong key"


def test_a_trainjob_and_its_runtime_have_only_fields_of_the_trainers_models() -> None:
    runtime, job = documents("trainjob")
    assert trainer_models.TrainerV1alpha1TrainJob.from_dict(job).to_dict() == job
    assert trainer_models.TrainerV1alpha1TrainingRuntime.from_dict(runtime).to_dict() == runtime
    job["spec"]["trainer"]["numProcsPerNode"] = 1
    assert trainer_models.TrainerV1alpha1TrainJob.from_dict(job).to_dict() != job


def test_an_mpijob_has_only_fields_of_v2beta1() -> None:
    (job,) = documents("mpijob")
    # No Python package has the models of v2beta1. Replicas and their pods are the same as in v1.
    assert set(job) == {"apiVersion", "kind", "metadata", "spec"}
    assert set(job["spec"]) <= {
        *("slotsPerWorker", "runLauncherAsWorker", "runPolicy", "mpiReplicaSpecs", "sshAuthMountPath"),
        *("launcherCreationPolicy", "mpiImplementation"),
    }
    for one in replicas(job).values():
        assert of_training_operator(one, "KubeflowOrgV1ReplicaSpec") == one
    policy = job["spec"]["runPolicy"]
    assert of_training_operator(policy, "KubeflowOrgV1RunPolicy") == policy


@pytest.mark.parametrize("kind", KINDS)
def test_pod_templates_are_valid_for_kubernetes(kind: str) -> None:
    latest = kubernetes_validate.latest_version()
    for template in templates(kind):
        # If the operator sets the restart policy, the template has none. A pod template needs no name.
        document = {"apiVersion": "v1", "kind": "PodTemplate", "template": template}
        kubernetes_validate.validate(document, latest, strict=True)
        template["spec"]["containers"][0]["volumeMount"] = []
        with pytest.raises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(document, latest, strict=True)


def test_the_manifests_follow_the_rules_of_the_webhooks() -> None:
    (job,) = documents("pytorchjob")
    worker = replicas(job)["Worker"]
    assert list(replicas(job)) == ["Worker"]  # required by an elastic policy
    assert [one["name"] for one in worker["template"]["spec"]["containers"]] == ["pytorch"]
    assert job["spec"]["nprocPerNode"] == "1"
    assert "nProcPerNode" not in job["spec"]["elasticPolicy"]  # forbidden beside nprocPerNode
    assert job["spec"]["elasticPolicy"]["minReplicas"] == job["spec"]["elasticPolicy"]["maxReplicas"] == 4
    runtime, train = documents("trainjob")
    (replicated,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    assert replicated["template"]["metadata"]["labels"]["trainer.kubeflow.org/trainjob-ancestor-step"] == "trainer"
    assert "replicas" not in replicated  # must be 1
    assert type(train["spec"]["trainer"]["numProcPerNode"]) is int
    reference = train["spec"]["runtimeRef"]
    assert (reference["kind"], reference["name"]) == (runtime["kind"], runtime["metadata"]["name"])
    (mpi,) = documents("mpijob")
    assert replicas(mpi)["Launcher"]["replicas"] == 1
    assert mpi["spec"]["slotsPerWorker"] == 1
    assert {one["restartPolicy"] for one in replicas(mpi).values()} <= {"Never", "OnFailure"}


def test_jobs_of_the_same_name_in_two_namespaces_share_no_runtime() -> None:
    for namespace in ("ml", "research"):
        runtime, train = documents("trainjob", namespace=namespace)
        assert runtime["kind"] == "TrainingRuntime"  # namespaced, unlike a ClusterTrainingRuntime
        assert runtime["metadata"]["namespace"] == train["metadata"]["namespace"] == namespace
        assert runtime["metadata"]["name"] == train["metadata"]["name"] == "bert"


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_claim_pods_write_to_their_tmp_volume(kind: str) -> None:
    for template in templates(kind, pvc="", command=("bench", "collectives")):
        spec = template["spec"]
        (container,) = spec["containers"]
        assert "claim" not in {one["name"] for one in (*spec["volumes"], *container["volumeMounts"])}
        assert all("persistentVolumeClaim" not in one for one in spec["volumes"])
        values = {entry["name"]: entry.get("value") for entry in container["env"]}
        assert values.get("HF_HOME", "/tmp/huggingface") == "/tmp/huggingface"
        kubernetes_validate.validate(
            {"apiVersion": "v1", "kind": "PodTemplate", "template": template},
            kubernetes_validate.latest_version(),
            strict=True,
        )


@pytest.mark.parametrize("kind", KINDS)
def test_pods_are_guaranteed_and_restricted_and_mount_all_their_volumes(kind: str) -> None:
    for template in templates(kind):
        spec = template["spec"]
        (container,) = spec["containers"]
        assert {volume["name"] for volume in spec["volumes"]} == {one["name"] for one in container["volumeMounts"]}
        if "resources" in container:
            assert container["resources"]["limits"] == container["resources"]["requests"]
        # The requirements of the Pod Security Standard "restricted".
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        rights = container["securityContext"]
        assert rights["allowPrivilegeEscalation"] is False
        assert rights["capabilities"] == {"drop": ["ALL"]}
        assert rights["readOnlyRootFilesystem"] is True
        # The image sets its preloads, and the CPUs follow from the control group.
        names = {entry["name"] for entry in container["env"]}
        assert not names & {"LD_PRELOAD", "OMP_NUM_THREADS", "CCL_WORKER_COUNT"}


@pytest.mark.parametrize(
    ("changes", "mebibytes"),
    [
        ({}, 3200),  # 1 GiB, and for up to 8 ranks on 128 CPUs (128 + 7) x 16 + 2: 3186
        ({"node_cpus": 0}, 3 * 1024),  # 120 CPUs
        ({"ranks_per_node": "1"}, 1024),
        ({"ranks_per_node": "2", "node_cpus": 64}, 2112),
    ],
)
def test_the_size_of_shared_memory_follows_from_the_cpus_of_the_node(
    changes: dict[str, Any], mebibytes: int
) -> None:
    (template,) = templates("pytorchjob", **changes)
    (volume,) = [one for one in template["spec"]["volumes"] if one["name"] == "shm"]
    assert volume["emptyDir"] == {"medium": "Memory", "sizeLimit": f"{mebibytes}Mi"}


def test_ranks_per_node_default_to_numa_nodes_and_the_operator_never_gets_auto() -> None:
    for ranks, typed, told in (("", "auto", 1), ("auto", "auto", 1), ("2", "2", 2)):
        (job,) = documents("pytorchjob", ranks_per_node=ranks)
        _, train = documents("trainjob", ranks_per_node=ranks)
        args = replicas(job)["Worker"]["template"]["spec"]["containers"][0]["args"]
        assert args[:2] == train["spec"]["trainer"]["args"][:2] == ["launch", f"--nproc-per-node={typed}"]
        assert (job["spec"]["nprocPerNode"], train["spec"]["trainer"]["numProcPerNode"]) == (str(told), told)
    (mpi,) = documents("mpijob", ranks_per_node="2")
    assert mpi["spec"]["slotsPerWorker"] == 2


def test_the_images_launchers_understand_the_manifests_arguments() -> None:
    (job,) = documents("pytorchjob")
    args = replicas(job)["Worker"]["template"]["spec"]["containers"][0]["args"]
    environ = {"PET_NNODES": "4:4", "PET_RDZV_BACKEND": "c10d", "PET_RDZV_ENDPOINT": "bert-worker-0:23456"}
    parsed = options.parse(args[1:], {**environ, "PET_NPROC_PER_NODE": "1", "PET_MAX_RESTARTS": "3"})
    assert (parsed.nnodes, parsed.nproc_per_node, parsed.max_restarts) == (4, None, 3)
    assert parsed.command == COMMAND
    (mpi,) = documents("mpijob")
    args = replicas(mpi)["Launcher"]["template"]["spec"]["containers"][0]["args"]
    started = parse_mpi_launch(args[1:], {"I_MPI_HYDRA_HOST_FILE": "a,b", "I_MPI_PERHOST": "1"})
    assert str(started.keys) == mpi["spec"]["sshAuthMountPath"]
    assert {"HOME", "HF_HOME", "HF_TOKEN", "NOTE"} <= set(started.variables)


@pytest.mark.parametrize("kind", KINDS)
def test_a_queue_is_a_label_of_the_job_and_a_scheduler_is_in_all_its_pods(kind: str) -> None:
    *runtimes, job = documents(kind, queue="team", scheduler_name="volcano")
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team"
    assert all(len(one["metadata"]["labels"]) == 1 for one in runtimes)
    pods = [one["spec"]["schedulerName"] for one in templates(kind, scheduler_name="volcano")]
    assert pods == ["volcano"] * len(templates(kind))


@pytest.mark.parametrize("kind", ["pytorchjob", "trainjob"])
def test_openshift_sets_the_user_of_the_pods(kind: str) -> None:
    for template in templates(kind, openshift=True):
        rights = template["spec"]["securityContext"]
        assert rights["runAsNonRoot"] is True
        assert not {"runAsUser", "runAsGroup", "fsGroup"} & set(rights)
    with pytest.raises(UsageError, match="found --openshift, but ssh needs a user with a name"):
        request("mpijob", openshift=True)


def test_dollar_signs_are_escaped_for_kubernetes() -> None:
    (template,) = templates("pytorchjob", command=("run", "x.py", "$(HOME)", "$$", "a$b"))
    args = template["spec"]["containers"][0]["args"]
    assert args[-3:] == ["$$(HOME)", "$$$$", "a$$b"]
    values = {entry["name"]: entry.get("value") for entry in template["spec"]["containers"][0]["env"]}
    assert values["NOTE"] == "$$(date) costs $$5"


def test_numbers_in_a_command_remain_strings() -> None:
    command = ("train", "--output_dir=/pvc/x", "--learning_rate", "1e-3", "--seed", "42", "--bf16", "true")
    text = rendered("pytorchjob", command=command)
    for word in ("1e-3", "42", "true"):
        assert re.search(rf"^ *- '{word}'$", text, re.MULTILINE), word


def test_a_job_keeps_its_name_while_its_command_is_the_same() -> None:
    first = request("pytorchjob").job
    assert first == request("pytorchjob", memory="256Gi", nodes=2).job
    changes: list[dict[str, Any]] = [{"command": (*COMMAND, "--seed=2")}, {"name": "other"}, {"namespace": ""}]
    assert len({first, *(request("pytorchjob", **change).job for change in changes)}) == 4


def test_variables_of_the_user_take_precedence() -> None:
    (template,) = templates("pytorchjob", env=(f"HF_HOME={CLAIM}/mine",))
    values = {entry["name"]: entry.get("value") for entry in template["spec"]["containers"][0]["env"]}
    assert values["HF_HOME"] == f"{CLAIM}/mine"


def test_without_restarts_a_failure_ends_the_job() -> None:
    (job,) = documents("pytorchjob", max_restarts=0)
    assert replicas(job)["Worker"]["restartPolicy"] == "Never"
    assert job["spec"]["runPolicy"]["backoffLimit"] == job["spec"]["elasticPolicy"]["maxRestarts"] == 0


def test_an_image_lock_sets_the_image(tmp_path: Path) -> None:
    lock.write(LOCK, tmp_path / "image.lock.json")
    locked = request("mpijob", image="", image_lock=str(tmp_path / "image.lock.json"))
    assert locked.reference == LOCK.image


def test_a_manifest_is_written_to_a_file_or_to_standard_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said: list[str] = []
    manifest.write(request("pytorchjob"), str(tmp_path / "job.yaml"), said.append)
    assert said == [f"wrote {tmp_path / 'job.yaml'}: kubectl create -f {tmp_path / 'job.yaml'}"]
    manifest.write(request("pytorchjob"), "", said.append)
    assert capsys.readouterr().out == (tmp_path / "job.yaml").read_text()
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot be written"):
        manifest.write(request("pytorchjob"), str(tmp_path / "file" / "job.yaml"), said.append)
