"""A TrainJob and the TrainingRuntime that it refers to (Kubeflow Trainer 2.3)."""

from __future__ import annotations

from tooling.kubernetes import pods
from tooling.kubernetes.pods import Document
from tooling.kubernetes.request import Request

API = "trainer.kubeflow.org/v1alpha1"
RUNTIME = "TrainingRuntime"
# The operator requires a container of this name, in a replicated job with this label.
CONTAINER = "node"
ANCESTOR = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}


def documents(request: Request) -> list[Document]:
    """The runtime, which describes the pods, and the job, which sets their number and command.

    When a pod fails, all pods restart together, at most `max_restarts` times: without an elastic rendezvous, the
    remaining pods could not continue.
    """
    template = pods.training_pod(request, pods.training_container(request, CONTAINER, []))
    runtime = {
        "apiVersion": API,
        "kind": RUNTIME,  # namespaced: a ClusterTrainingRuntime would be shared by all jobs of its name
        "metadata": pods.metadata(request),
        "spec": {
            "mlPolicy": {"numNodes": request.nodes, "torch": {}},
            "template": {
                "spec": {
                    "failurePolicy": {"maxRestarts": request.max_restarts},
                    "replicatedJobs": [
                        {
                            "name": CONTAINER,
                            "template": {
                                "metadata": {"labels": {**ANCESTOR, **pods.LABELS}},
                                "spec": {
                                    "backoffLimit": 0,
                                    "template": {"spec": {"restartPolicy": "Never", **template}},
                                },
                            },
                        }
                    ],
                },
            },
        },
    }
    job = {
        "apiVersion": API,
        "kind": "TrainJob",
        "metadata": pods.metadata(request),
        "spec": {
            "runtimeRef": {"apiGroup": API.partition("/")[0], "kind": RUNTIME, "name": request.name},
            "trainer": {
                "numNodes": request.nodes,
                "numProcPerNode": pods.operators_ranks(request),
                "args": [pods.escape(word) for word in pods.launch(request)],
                "resourcesPerNode": pods.resources(request),
            },
        },
    }
    return [runtime, job]
