"""The pods of manifests: valid for Kubernetes, restricted, and with the volumes and variables of the image."""

import re
import textwrap
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.unit.tooling.kubernetes.jobs import KINDS, Document, policy, templates
from tooling.basis.paths import ROOT
from tooling.kubernetes.request import CLAIM


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


# Labels that each operator gives the pods of the job bert: training-operator 1.9.0 (pkg/common), mpi-operator 0.8
# (pkg/apis/kubeflow/v2beta1/constants.go), and JobSet, for Trainer.
OPERATORS_LABELS = {
    "pytorchjob": {
        "training.kubeflow.org/job-name": "bert",
        "training.kubeflow.org/operator-name": "pytorchjob-controller",
        "training.kubeflow.org/replica-type": "worker",
    },
    "mpijob": {
        "training.kubeflow.org/job-name": "bert",
        "training.kubeflow.org/operator-name": "mpi-operator",
        "training.kubeflow.org/job-role": "worker",
    },
    "trainjob": {"jobset.sigs.k8s.io/jobset-name": "bert", "jobset.sigs.k8s.io/replicatedjob-name": "node"},
}


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_pods_of_a_job_reach_its_pods(kind: str) -> None:
    found = policy(kind)
    kubernetes_validate.validate(found, kubernetes_validate.latest_version(), strict=True)
    spec = found["spec"]
    assert found["metadata"]["namespace"] == "ml"
    assert spec["podSelector"]["matchLabels"].items() <= OPERATORS_LABELS[kind].items()
    assert spec["policyTypes"] == ["Ingress"]  # pods download models, and reach the API server
    assert spec["ingress"] == [{"from": [{"podSelector": spec["podSelector"]}]}]  # at any port
    others = [
        policy(other, name=name)
        for other in KINDS
        for name in ("bert", "other")
        if (other, name) != (kind, "bert")
    ]
    for other in others:
        assert not other["spec"]["podSelector"]["matchLabels"].items() <= OPERATORS_LABELS[kind].items()


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


def is_restricted(spec: Document) -> bool:
    """Whether a pod meets the Pod Security Standard "restricted"."""
    (container,) = spec["containers"]
    rights = container["securityContext"]
    return (
        spec["securityContext"]["runAsNonRoot"] is True
        and spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        and rights["allowPrivilegeEscalation"] is False
        and rights["capabilities"] == {"drop": ["ALL"]}
    )


def test_the_pod_in_the_docs_that_copies_files_is_valid_and_restricted() -> None:
    text = (ROOT / "docs/kubernetes.md").read_text(encoding="utf-8")
    block = re.search(r"^ +apiVersion: v1\n +kind: Pod\n(.+\n)+", text, re.MULTILINE)
    assert block
    pod = yaml.safe_load(textwrap.dedent(block[0]))
    kubernetes_validate.validate(pod, kubernetes_validate.latest_version(), strict=True)
    assert is_restricted(pod["spec"])


@pytest.mark.parametrize("kind", KINDS)
def test_pods_are_guaranteed_and_restricted_and_mount_all_their_volumes(kind: str) -> None:
    for template in templates(kind):
        spec = template["spec"]
        (container,) = spec["containers"]
        assert {volume["name"] for volume in spec["volumes"]} == {one["name"] for one in container["volumeMounts"]}
        if "resources" in container:
            assert container["resources"]["limits"] == container["resources"]["requests"]
        assert is_restricted(spec)
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
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


@pytest.mark.parametrize("kind", KINDS)
def test_openshift_sets_the_user_of_the_pods(kind: str) -> None:
    for template in templates(kind, openshift=True):
        rights = template["spec"]["securityContext"]
        assert rights["runAsNonRoot"] is True
        assert not {"runAsUser", "runAsGroup", "fsGroup"} & set(rights)


def test_dollar_signs_are_escaped_for_kubernetes() -> None:
    (template,) = templates("pytorchjob", command=("run", "x.py", "$(HOME)", "$$", "a$b"))
    args = template["spec"]["containers"][0]["args"]
    assert args[-3:] == ["$$(HOME)", "$$$$", "a$$b"]
    values = {entry["name"]: entry.get("value") for entry in template["spec"]["containers"][0]["env"]}
    assert values["NOTE"] == "$$(date) costs $$5"


def test_variables_of_the_user_take_precedence() -> None:
    (template,) = templates("pytorchjob", env=(f"HF_HOME={CLAIM}/mine",))
    values = {entry["name"]: entry.get("value") for entry in template["spec"]["containers"][0]["env"]}
    assert values["HF_HOME"] == f"{CLAIM}/mine"
