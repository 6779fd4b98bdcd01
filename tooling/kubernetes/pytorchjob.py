"""A PyTorchJob (training-operator 1.9): elastic torchrun, whose nodes meet by c10d at the first worker."""

from __future__ import annotations

from tooling.kubernetes import pods
from tooling.kubernetes.pods import Document
from tooling.kubernetes.request import Request

# The webhook asks for this name, the operator takes the port's number for PET_RDZV_ENDPOINT.
CONTAINER = "pytorch"
PORT = {"name": "pytorchjob-port", "containerPort": 23456}


def documents(request: Request) -> list[Document]:
    """The job. Its ranks restart in their pods (maxRestarts); a pod that ends restarts too."""
    container = pods.training_container(
        request, CONTAINER, pods.launch(request), ports=[PORT], resources=pods.resources(request)
    )
    worker = {
        "replicas": request.nodes,
        "restartPolicy": "OnFailure" if request.max_restarts else "Never",
        "template": {"metadata": {"labels": dict(pods.LABELS)}, "spec": pods.training_pod(request, container)},
    }
    return [
        {
            "apiVersion": "kubeflow.org/v1",
            "kind": "PyTorchJob",
            "metadata": pods.metadata(request),
            "spec": {
                "nprocPerNode": str(pods.operators_ranks(request)),
                # The restarts of all pods together: when the first worker is lost, all of them start again.
                "runPolicy": {"cleanPodPolicy": "Running", "backoffLimit": request.max_restarts * request.nodes},
                "elasticPolicy": {
                    "rdzvBackend": "c10d",
                    "minReplicas": request.nodes,
                    "maxReplicas": request.nodes,
                    "maxRestarts": request.max_restarts,
                },
                "pytorchReplicaSpecs": {"Worker": worker},
            },
        }
    ]
