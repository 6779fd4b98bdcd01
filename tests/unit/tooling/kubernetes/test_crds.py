"""Manifests against the definitions (CRDs) of the operators: the fields that crds.yaml describes.

CTS_CRDS=FOLDER with the operators' own CRD files: the same checks run on these files, and crds.yaml is compared
with them. The files, below manifests/base in the repositories of Kubeflow: crds/*.yaml of trainer (8c0f505),
crds/kubeflow.org_pytorchjobs.yaml of training-operator 1.9.0 (the tag v1.9.0 in trainer), and
kubeflow.org_mpijobs.yaml of mpi-operator (caa3c47).
"""

import copy
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from cpu_train_stack.cli.errors import UsageError
from tests.unit.tooling.kubernetes.crd_schema import Schema, mistakes, read
from tests.unit.tooling.kubernetes.jobs import KINDS, documents

DESCRIPTION = Path(__file__).parent / "crds.yaml"
REAL = os.environ.get("CTS_CRDS", "")
ALL_OPTIONS = {"queue": "team", "scheduler_name": "volcano"}
# Of a description, what is compared with the operators' files.
COMPARED = (
    *("type", "format", "enum", "pattern", "required", "minimum", "maximum", "minLength", "maxLength", "minItems"),
    *("maxItems", "minProperties", "x-kubernetes-int-or-string", "x-kubernetes-list-map-keys"),
)

# Bounds that Trainer has added after 2.3.0. ./inv manifest checks both numbers itself.
NEWER = ("TrainJob.spec.trainer.numNodes", "TrainJob.spec.trainer.numProcPerNode")


def described() -> dict[tuple[str, str], Schema]:
    definitions = yaml.safe_load(DESCRIPTION.read_text(encoding="utf-8"))["definitions"]
    return {(name.split()[0], name.split()[1]): schema for name, schema in definitions.items()}


@cache
def real() -> dict[tuple[str, str], Schema]:
    return read(Path(REAL))


OURS = described()


@pytest.fixture(params=["described", "real"] if REAL else ["described"])
def schemas(request: pytest.FixtureRequest) -> dict[tuple[str, str], Schema]:
    return real() if request.param == "real" else OURS


def of_kind(kind: str, **options: Any) -> dict[str, Any]:
    """The only or last document of a manifest, or the runtime of a TrainJob."""
    found = documents("trainjob" if kind == "runtime" else kind, **options)
    return found[0] if kind == "runtime" else found[-1]


@pytest.mark.parametrize("options", [{}, ALL_OPTIONS], ids=["few options", "all options"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_api_server_accepts_the_manifest(
    kind: str, options: dict[str, Any], schemas: dict[tuple[str, str], Schema]
) -> None:
    for document in documents(kind, **options):
        assert mistakes(document, schemas) == []


_WORKER = "spec.pytorchReplicaSpecs.Worker"
_CONTAINER = f"{_WORKER}.template.spec.containers.0"
_JOBS = "spec.template.spec.replicatedJobs"
# Kind, path, the value there (None: no such field), and the start of the message.
BROKEN: list[tuple[str, str, Any, str]] = [
    ("pytorchjob", "apiVersion", "kubeflow.org/v2", "no definition of PyTorchJob"),
    ("pytorchjob", "spec.nProcPerNode", "1", "spec.nProcPerNode: unknown field"),
    ("pytorchjob", "spec.nprocPerNode", 1, "spec.nprocPerNode: 1 is not of type string"),
    ("pytorchjob", "spec.pytorchReplicaSpecs", None, "spec.pytorchReplicaSpecs: missing"),
    ("pytorchjob", "spec.elasticPolicy.minReplicas", True, "spec.elasticPolicy.minReplicas: True is not of type"),
    ("pytorchjob", "spec.runPolicy.backoffLimit", 1 << 31, "spec.runPolicy.backoffLimit: 2147483648 is not"),
    ("pytorchjob", f"{_WORKER}.template.spec.containers", None, f"{_WORKER}.template.spec.containers: missing"),
    ("pytorchjob", f"{_CONTAINER}.resources.limits.memory", "128GB", "does not match"),
    ("pytorchjob", f"{_CONTAINER}.env.1.name", "CPU_TRAIN_STACK_IMAGE", "two items have the same name"),
    ("pytorchjob", f"{_CONTAINER}.volumeMounts.0.mountPath", None, "mountPath: missing"),
    ("pytorchjob", f"{_CONTAINER}.command", "train", "command: "),
    ("mpijob", "spec.mpiImplementation", "Hydra", "spec.mpiImplementation: 'Hydra' is not one of"),
    ("mpijob", "spec.slotsPerWorker", "1", "spec.slotsPerWorker: '1' is not of type integer"),
    ("mpijob", "spec.elasticPolicy", {}, "spec.elasticPolicy: unknown field"),
    ("runtime", "spec", {}, "spec: its size 0 is not allowed"),
    ("runtime", "spec.mlPolicy.mpi", {"numProcPerNode": 1}, "spec.mlPolicy"),
    ("runtime", f"{_JOBS}.0.template", None, "template: missing"),
    ("runtime", f"{_JOBS}.0.template.spec.template.spec.restartpolicy", "Never", "restartpolicy: unknown field"),
    ("trainjob", "metadata.name", "1bert", "(document): "),
    ("trainjob", "metadata.name", "b" * 64, "(document): "),
    ("trainjob", "metadata.label", {}, "metadata.label: unknown field"),
    ("trainjob", "spec.runtimeRef.name", "", "spec.runtimeRef.name: its size 0"),
    ("trainjob", "spec.trainer.numProcPerNode", "auto", "spec.trainer.numProcPerNode: 'auto' is not of type"),
    ("trainjob", "spec.trainer.numProcPerNode", 0, "spec.trainer.numProcPerNode: "),
    ("trainjob", "spec.trainer.numNodes", -1, "spec.trainer.numNodes: -1 is not between"),
    ("trainjob", "spec.trainer.args", ["train"] * 129, "spec.trainer.args: its size 129"),
]


def changed(document: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """The document with another value at the path, or without the field if the value is None."""
    result = copy.deepcopy(document)
    place: Any = result
    *folders, last = [int(name) if name.isdigit() else name for name in path.split(".")]
    for name in folders:
        place = place[name]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return result


@pytest.mark.parametrize(
    ("kind", "path", "value", "expected"), BROKEN, ids=[f"{kind} {path}" for kind, path, *_ in BROKEN]
)
def test_a_broken_manifest_is_refused(
    kind: str, path: str, value: Any, expected: str, schemas: dict[tuple[str, str], Schema]
) -> None:
    if path.endswith(".command") and schemas is OURS:
        expected = f"{path.replace('.0.', '[0].')}: unknown field"  # the manifests never write it
    found = mistakes(changed(of_kind(kind), path, value), schemas)
    if schemas is not OURS and not found and f"TrainJob.{path}" in NEWER:
        pytest.skip("this release of Trainer has no lower bound")
    assert any(expected in line for line in found), found


def rules(schema: Schema) -> list[str]:
    """The rules for a new object, without their line breaks."""
    found = [" ".join(rule["rule"].split()) for rule in schema.get("x-kubernetes-validations", ())]
    return [rule for rule in found if "oldSelf" not in rule]


def differences(ours: Schema, real: Schema, path: str) -> Iterator[str]:
    """The constraints of our description that differ from the operator's file."""
    for name in COMPARED:
        if ours.get(name) != real.get(name) and not (path in NEWER and name not in real):
            yield f"{path}: {name} is {ours.get(name)}, in the operator's file {real.get(name)}"
    if rules(ours) != rules(real) and not (path in NEWER and not rules(real)):
        yield f"{path}: the rules are {rules(ours)}, in the operator's file {rules(real)}"
    for name, schema in ours.get("properties", {}).items():
        yield from differences(schema, real.get("properties", {}).get(name, {}), f"{path}.{name}")
    for name in ("items", "additionalProperties"):
        if name in ours:
            yield from differences(ours[name], real.get(name, {}), f"{path}.{name}")


@pytest.mark.skipif(not REAL, reason="the operators' files are not here: set CTS_CRDS=FOLDER")
@pytest.mark.parametrize("identity", OURS, ids=" ".join)
def test_the_description_agrees_with_the_operators_file(identity: tuple[str, str]) -> None:
    assert list(differences(OURS[identity], real()[identity], identity[1])) == []


def test_a_trainjob_with_more_words_than_its_definition_allows_is_refused() -> None:
    command = ("train", *(f"--flag{number}" for number in range(123)))
    assert mistakes(of_kind("trainjob", command=command), OURS) == []
    with pytest.raises(UsageError, match="the command has 125 words, expected at most 124 in a TrainJob"):
        documents("trainjob", command=(*command, "--seed=1"))
