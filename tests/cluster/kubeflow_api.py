"""As much of a Kubernetes API server as Kubeflow's SDK needs to find a runtime and to create a TrainJob."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.answers import answer, served

_API = "/apis/trainer.kubeflow.org/v1alpha1/"


@dataclass
class Cluster:
    """`runtimes`: the objects in the namespace. `jobs`: those that the SDK has created."""

    namespace: str
    runtimes: dict[str, dict[str, Any]]
    jobs: list[dict[str, Any]] = field(default_factory=list)
    address: str = ""


@contextmanager
def serve(cluster: Cluster) -> Iterator[Cluster]:
    """Serves the cluster on a port of this machine, and sets its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            folder = f"{_API}namespaces/{cluster.namespace}/trainingruntimes"
            name = self.path.removeprefix(f"{folder}/")
            if self.path == folder:
                answer(self, {"items": list(cluster.runtimes.values())})
            elif self.path == f"{_API}clustertrainingruntimes":
                answer(self, {"items": []})
            elif name in cluster.runtimes:
                answer(self, cluster.runtimes[name])
            else:
                answer(self, {"kind": "Status", "code": 404}, 404)

        def do_POST(self) -> None:
            job = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            cluster.jobs.append(job)
            answer(self, job, 201)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with served(Handler) as address:
        cluster.address = f"http://{address}"
        yield cluster
