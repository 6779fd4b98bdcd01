"""examples/kustomize: kustomize adds to each kind of manifest what `./inv manifest` has no flag for."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import containers
from tests.cluster.conftest import inv
from tooling.basis.paths import ROOT
from tooling.engine import docker

IMAGE = f"registry.example/team/stack@sha256:{'0123456789abcdef' * 4}"
ANNOTATION = {"example.com/cost-center": "42"}
# Where each kind has the template of its pods.
TEMPLATES = {
    "pytorchjob": ("PyTorchJob", ("pytorchReplicaSpecs", "Worker")),
    "trainjob": ("TrainingRuntime", ("template", "spec", "replicatedJobs", 0, "template", "spec")),
    "mpijob": ("MPIJob", ("mpiReplicaSpecs", "Worker")),
}


@pytest.fixture(scope="module")
def kustomize() -> Iterator[str]:
    """An image with Debian 13's kustomize."""
    tag = f"{containers.unique_name()}:kustomize"
    containers.build(
        tag,
        "FROM {base}\nRUN apt-get update && apt-get install --no-install-recommends -y kustomize\n",
        pin="2.15",
    )
    yield tag
    docker.remove_image(tag)


def documents(text: str) -> dict[str, Any]:
    return {document["kind"]: document for document in yaml.safe_load_all(text)}


@pytest.mark.parametrize("kind", TEMPLATES)
def test_the_example_adds_to_the_pods_and_changes_nothing_else(kustomize: str, kind: str, tmp_path: Path) -> None:
    argv = ("manifest", kind, "--name=bert", f"--image={IMAGE}", "--nodes=2", "--cpus=4", "--memory=8Gi")
    before = containers.works(inv(*argv, "--", "run", "script.py"))
    tmp_path.chmod(0o755)
    (tmp_path / "job.yaml").write_text(before)
    example = ROOT / "examples" / "kustomize" / "kustomization.yaml"
    (tmp_path / "kustomization.yaml").write_bytes(example.read_bytes())
    mount = ("--volume", f"{tmp_path}:/job:ro")
    built = containers.works(containers.run(kustomize, "kustomize", "build", "/job", docker_args=mount))

    found, expected = documents(built), documents(before)
    owner, path = TEMPLATES[kind]
    template = found[owner]["spec"]
    for key in path:
        template = template[key]
    template = template["template"]
    pod, container = template["spec"], template["spec"]["containers"][0]
    assert template["metadata"]["labels"].pop("team") == "nlp"
    assert template["metadata"].pop("annotations") == ANNOTATION
    assert pod.pop("priorityClassName") == "batch"
    assert pod.pop("tolerations") == [{"key": "dedicated", "value": "training", "effect": "NoSchedule"}]
    assert "nodeAffinity" in pod.pop("affinity")
    assert pod["volumes"].pop() == {"name": "scratch", "emptyDir": {"sizeLimit": "50Gi"}}
    assert container["volumeMounts"].pop() == {"name": "scratch", "mountPath": "/scratch"}
    for document in found.values():
        assert document["metadata"].pop("annotations") == ANNOTATION
        assert document["metadata"]["labels"].pop("team") == "nlp"
    assert found == expected
