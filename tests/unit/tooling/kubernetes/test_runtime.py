"""./inv manifest runtime: a runtime without a job, as Kubeflow's SDK and an API server read it."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from cpu_train_stack import contract
from cpu_train_stack.cli.errors import UsageError
from tests.unit.tooling.image.examples import LOCK
from tests.unit.tooling.kubernetes.crd_schema import mistakes
from tests.unit.tooling.kubernetes.jobs import IMAGE, OPTIONS
from tests.unit.tooling.kubernetes.test_crds import OURS, REAL, real
from tooling.basis.yaml import render
from tooling.image import lock
from tooling.kubernetes import manifest
from tooling.kubernetes.trainer import Runtime

ALL = {name: value for name, value in OPTIONS.items() if name not in ("command", "nodes")}


def runtime(**changes: Any) -> dict[str, Any]:
    (document,) = yaml.safe_load_all(render(Runtime(**{**ALL, **changes}).documents()))
    return dict(document)


def container(document: dict[str, Any]) -> dict[str, Any]:
    (job,) = document["spec"]["template"]["spec"]["replicatedJobs"]
    (found,) = job["template"]["spec"]["template"]["spec"]["containers"]
    return dict(found)


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({}, "TrainingRuntime"),
        ({"scheduler_name": "volcano", "ranks_per_node": "2"}, "TrainingRuntime"),
        ({"namespace": "", "cluster_scope": True}, "ClusterTrainingRuntime"),
    ],
    ids=["namespaced", "all options", "of the cluster"],
)
def test_an_api_server_and_the_sdk_accept_a_runtime(changes: dict[str, Any], kind: str) -> None:
    # Imported here because they are slow to import, and every pytest process imports all test files.
    import kubeflow_trainer_api.models as trainer_models
    from kubeflow.trainer.backends.container.runtime_loader import _parse_runtime_yaml

    document = runtime(**changes)
    assert document["kind"] == kind
    for schemas in (OURS, real()) if REAL else (OURS,):
        assert mistakes(document, schemas) == []
    model = getattr(trainer_models, f"TrainerV1alpha1{kind}")
    assert model.from_dict(document).to_dict() == document
    read = _parse_runtime_yaml({**document, "kind": "ClusterTrainingRuntime"}, source="a test")
    assert (read.name, read.trainer.framework, read.trainer.image) == ("bert", "torch", IMAGE)


def test_the_container_is_ready_for_the_sdks_command() -> None:
    found = container(runtime())
    assert found["name"] == "node"
    assert not {"command", "args"} & set(found)  # the SDK's command would get them as its arguments
    assert found["workingDir"] == "/tmp"  # the SDK writes its script there, and the root file system is read-only
    variables = {entry["name"]: entry for entry in found["env"]}
    assert variables[contract.RANKS_PER_NODE]["value"] == "auto"
    assert container(runtime(ranks_per_node="2"))["env"][-1]["value"] == "2"
    assert "jobset-name" in variables[contract.JOB]["valueFrom"]["fieldRef"]["fieldPath"]


def test_a_policy_selects_the_pods_of_the_runtimes_jobs() -> None:
    policy, document = manifest.documents(Runtime(**ALL))
    assert policy["kind"] == "NetworkPolicy"
    (job,) = document["spec"]["template"]["spec"]["replicatedJobs"]
    labels = job["template"]["spec"]["template"]["metadata"]["labels"]
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= labels.items()


def test_a_runtime_of_the_cluster_has_no_policy_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    manifest.write(Runtime(**{**ALL, "namespace": "", "cluster_scope": True}), "")
    printed = capsys.readouterr()
    assert "NetworkPolicy" not in printed.out
    assert printed.err.startswith("warning: --cluster-scope: ")
    assert "NetworkPolicy" in printed.err


def test_the_name_follows_from_the_pin_of_the_lock(tmp_path: Path) -> None:
    lock.write(LOCK, tmp_path / "image.lock.json")
    locked = Runtime(image_lock=str(tmp_path / "image.lock.json"), cpus=2, memory="8Gi")
    assert (locked.name, locked.reference) == ("cpu-train-stack-2-13", LOCK.image)
    assert Runtime(image=IMAGE, cpus=2, memory="8Gi").name == "cpu-train-stack"


def test_a_missing_lock_is_reported_with_the_other_mistakes(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--cpus is missing.*none\.json.*--memory is missing"):
        Runtime(image_lock=f"{tmp_path}/none.json")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"cluster_scope": True}, "found --cluster-scope and --namespace ml"),
        ({"name": "Bert"}, "--name is 'Bert'"),
        ({"name": "b" * 64}, "expected at most 63 lower-case letters"),
        ({"cpus": 0}, "--cpus is missing"),
        ({"image_lock": "image.lock.json"}, "found both --image and --image-lock"),
    ],
)
def test_a_bad_option_is_reported(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        runtime(**changes)
