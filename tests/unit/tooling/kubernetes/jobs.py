"""The jobs of the tests of manifests: one of each kind with the same options, and its documents."""

from typing import Any, get_args

import yaml

from tooling.basis.yaml import render
from tooling.kubernetes import manifest
from tooling.kubernetes.operators import Job

Document = dict[str, Any]

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
    return render(manifest.documents(request(kind, **changes)))


def policy(kind: str, **changes: Any) -> Document:
    """The NetworkPolicy of the manifest, which comes before the pods."""
    found: Document = next(yaml.safe_load_all(rendered(kind, **changes)))
    assert found["kind"] == "NetworkPolicy"
    return found


def documents(kind: str, **changes: Any) -> list[Document]:
    """The documents of the job, parsed."""
    return list(yaml.safe_load_all(rendered(kind, **changes)))[1:]


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
