"""Manifests: golden files, the operators' own models, and the rules of the webhooks.

MANIFESTS=write in the environment of this test rewrites the golden files.
"""

import json
import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.launch import options
from cpu_train_stack.launch.mpi.command import parse as parse_mpi_launch
from tests.unit.tooling.image.examples import LOCK
from tests.unit.tooling.kubernetes.jobs import (
    COMMAND,
    KINDS,
    Document,
    documents,
    rendered,
    replicas,
    request,
    templates,
)
from tooling.image import lock
from tooling.kubernetes import manifest

GOLDEN = Path(__file__).parent / "manifests"


@pytest.mark.parametrize("kind", KINDS)
def test_the_manifest_equals_the_golden_file(kind: str) -> None:
    text = rendered(kind)
    file = GOLDEN / f"{kind}.yaml"
    if os.environ.get("MANIFESTS") == "write":
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")


def of_training_operator(document: Document, model: str) -> Document:
    """The document as the operator's own Python client reads it and writes it again."""
    import kubeflow.training  # slow, and every pytest process imports all test files

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
    import kubeflow_trainer_api.models as trainer_models  # slow, as above

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


def test_without_restarts_a_failure_ends_the_job() -> None:
    (job,) = documents("pytorchjob", max_restarts=0)
    assert replicas(job)["Worker"]["restartPolicy"] == "Never"
    assert job["spec"]["elasticPolicy"]["maxRestarts"] == 0
    assert job["spec"]["runPolicy"] == {"cleanPodPolicy": "Running"}


def test_an_image_lock_sets_the_image(tmp_path: Path) -> None:
    lock.write(LOCK, tmp_path / "image.lock.json")
    locked = request("mpijob", image="", image_lock=str(tmp_path / "image.lock.json"))
    assert locked.reference == LOCK.image


def test_a_manifest_is_written_to_a_file_or_to_standard_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "job.yaml"
    manifest.write(request("pytorchjob"), str(path))
    assert capsys.readouterr().err == f"wrote {path}: kubectl create -f {path}\n"
    manifest.write(request("pytorchjob"), "")
    assert capsys.readouterr().out == path.read_text()
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot be written"):
        manifest.write(request("pytorchjob"), str(tmp_path / "file" / "job.yaml"))


@pytest.mark.parametrize(("env", "mode"), [((), 0o644), (("TOKEN=x",), 0o600)], ids=["no values", "values"])
def test_a_manifest_with_values_is_private(env: tuple[str, ...], mode: int, tmp_path: Path) -> None:
    output = tmp_path / "job.yaml"
    output.touch(0o644)
    before = os.umask(0o022)
    try:
        manifest.write(request("trainjob", env=env), str(output))
    finally:
        os.umask(before)
    assert output.stat().st_mode & 0o777 == mode
