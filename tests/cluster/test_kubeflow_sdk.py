"""Kubeflow's SDK trains a user's function in the pods of a runtime of ./inv manifest, and in local containers."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubeflow.common.types import KubernetesBackendConfig
from kubeflow.trainer import CustomTrainer, TrainerClient
from kubeflow.trainer.backends.container.types import ContainerBackendConfig, TrainingRuntimeSource
from kubernetes import client

from tests.cluster import kubeflow_api, pods
from tests.cluster.pod_cluster import NAMESPACE, REFERENCE, cluster_of, log, wait
from tests.unit.tooling.kubernetes.crd_schema import mistakes
from tests.unit.tooling.kubernetes.test_crds import OURS
from tooling.basis.yaml import render
from tooling.kubernetes.trainer import Runtime

NAME = "cpu-train-stack-2-13"


def train(steps: int) -> None:
    """What a user writes: torch's own calls, and no word about this stack."""
    import json
    import os

    import torch
    import torch.distributed as dist

    dist.init_process_group(backend="gloo")
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rows = torch.randn(64, 8, generator=torch.Generator().manual_seed(dist.get_rank()))
    losses = []
    for _ in range(steps):
        loss = (model(rows) - rows.sum(1, keepdim=True)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    weights = [torch.zeros(8) for _ in range(dist.get_world_size())]
    dist.all_gather(weights, model.module.weight.detach().flatten())
    maps = open("/proc/self/maps").read()  # noqa: PTH123, SIM115 - this function is copied into a container
    found = {
        "ranks": dist.get_world_size(),
        "per node": int(os.environ["LOCAL_WORLD_SIZE"]),
        "backend": dist.get_backend(),
        "preloaded": "tcmalloc" in maps and "iomp5" in maps,
        "same weights": all(bool(torch.equal(weights[0], other)) for other in weights),
        "learned": losses[-1] < losses[0] / 10,
    }
    if dist.get_rank() == 0:
        print("result", json.dumps(found), flush=True)


EXPECTED = {"ranks": 2, "per node": 1, "backend": "ccl", "preloaded": True, "same weights": True, "learned": True}


def result(text: str) -> dict[str, Any]:
    (line,) = [line for line in text.splitlines() if line.startswith("result ")]
    found: dict[str, Any] = json.loads(line.removeprefix("result "))
    return found


def manifest(image: str, **options: Any) -> dict[str, Any]:
    runtime = Runtime(
        image=image, name=NAME, nodes=1, cpus=2, memory="3Gi", node_cpus=os.cpu_count() or 1, **options
    )
    (document,) = yaml.safe_load_all(render(runtime.documents()))
    assert mistakes(document, OURS) == []
    return dict(document)


@pytest.fixture(autouse=True)
def nothing_left() -> None:
    """In place of the clean-up of ./inv's clusters: here is none."""


@pytest.fixture
def api() -> Iterator[kubeflow_api.Cluster]:
    runtimes = {NAME: manifest(REFERENCE, namespace=NAMESPACE, pvc="training", secret_env=("HF_TOKEN=hub/token",))}
    with kubeflow_api.serve(kubeflow_api.Cluster(NAMESPACE, runtimes)) as served:
        yield served


def test_a_function_trains_in_the_pods_of_a_runtime(image: str, api: kubeflow_api.Cluster, tmp_path: Path) -> None:
    configuration = client.Configuration(host=api.address)
    backend = KubernetesBackendConfig(namespace=NAMESPACE, client_configuration=configuration)
    trainer = TrainerClient(backend_config=backend)
    assert [runtime.name for runtime in trainer.list_runtimes()] == [NAME]
    trainer.train(runtime=NAME, trainer=CustomTrainer(func=train, func_args={"steps": 30}, num_nodes=2))
    (job,) = api.jobs
    started = pods.trainjob_pods(api.runtimes[NAME], job)
    # The operator's number of ranks is that of the CPUs. The runtime's variable replaces it.
    assert [pod.environment["PET_NPROC_PER_NODE"] for pod in started] == ["2", "2"]
    with cluster_of(image, tmp_path) as cluster:
        names = [cluster.start(pod) for pod in started]
        wait(names)
        assert result(log(names[0])) == EXPECTED


def test_a_function_trains_in_the_sdks_local_containers(
    image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))  # of the SDK's folders
    document = manifest(REFERENCE)
    (tmp_path / "runtime.yaml").write_text(json.dumps(document).replace(REFERENCE, image))
    source = TrainingRuntimeSource(sources=[str(tmp_path / "runtime.yaml")])
    backend = ContainerBackendConfig(pull_policy="Never", container_runtime="docker", runtime_source=source)
    trainer = TrainerClient(backend_config=backend)
    name = trainer.train(runtime=NAME, trainer=CustomTrainer(func=train, func_args={"steps": 30}, num_nodes=2))
    try:
        trainer.wait_for_job_status(name, timeout=300)
        assert result("\n".join(trainer.get_job_logs(name, step="node-0"))) == EXPECTED
    finally:
        trainer.delete_job(name)
