"""The tasks `manifest KIND`: one for each operator, with the same options."""

from __future__ import annotations

from collections.abc import Callable

from invoke.context import Context
from invoke.tasks import Task

from tooling.basis.say import say
from tooling.cli.options import task
from tooling.cli.parser import remainder_argv
from tooling.kubernetes import manifest as manifests
from tooling.kubernetes.operators import OPERATORS


def _manifest(kind: str, what: str) -> Task[Callable[..., None]]:
    """The task `manifest KIND`: the same options for each."""

    def manifest(
        _c: Context,
        node_selector: list[str],
        env: list[str],
        secret_env: list[str],
        name: str = "train",
        namespace: str = "",
        image_lock: str = "",
        image: str = "",
        nodes: int = 2,
        ranks_per_node: str = "",
        cpus: int = 0,
        memory: str = "",
        node_cpus: int = 0,
        node_memory: str = "",
        pvc: str = "",
        pull_secret: str = "",
        max_restarts: int = 3,
        output: str = "",
    ) -> None:
        job = OPERATORS[kind](
            command=tuple(remainder_argv()),
            name=name,
            namespace=namespace,
            image=image,
            image_lock=image_lock,
            nodes=nodes,
            cpus=cpus,
            memory=memory,
            ranks_per_node=ranks_per_node,
            pvc=pvc,
            node_selector=tuple(node_selector),
            env=tuple(env),
            secret_env=tuple(secret_env),
            pull_secret=pull_secret,
            max_restarts=max_restarts,
            node_cpus=node_cpus,
            node_memory=node_memory,
        )
        manifests.write(job, output, say)

    manifest.__doc__ = f"Write a Kubernetes {what}: ./inv manifest {kind} ... -- train ..."
    made: Task[Callable[..., None]] = task(
        name=f"manifest-{kind}",
        iterable=["node_selector", "env", "secret_env"],
        help={
            "name": "of the job, and prefix of its pods' names",
            "namespace": "default: that of kubectl's context",
            "image-lock": "the image named in this image.lock.json of ./inv push, by digest",
            "image": "HOST/NAME@sha256:… instead of --image-lock",
            "nodes": "pods that train, one on each node of the cluster",
            "ranks-per-node": "training processes in each; default one for each NUMA node (mpijob: 1)",
            "cpus": "of each pod, as request and limit; leave some for the node",
            "memory": "of each pod, as request and limit: 128Gi, for example; /dev/shm counts",
            "node-cpus": "hardware threads of a node (default twice --cpus): for the size of /dev/shm",
            "node-memory": "of a node: warns if --memory leaves nothing for the system",
            "pvc": "the PersistentVolumeClaim for models, data and output, mounted at /pvc; default none",
            "node-selector": "KEY=VALUE that a node's labels must have; may be repeated",
            "env": "NAME=VALUE for every rank; may be repeated",
            "secret-env": "NAME=SECRET/KEY: a variable for every rank from a secret; may be repeated",
            "pull-secret": "the secret with the registry's credentials",
            "max-restarts": "how often to restart after a failure, from the last checkpoint",
            "output": "the file; default standard output",
        },
    )(manifest)
    return made


manifest_pytorchjob = _manifest("pytorchjob", "PyTorchJob")
manifest_trainjob = _manifest("trainjob", "TrainJob with its runtime")
manifest_mpijob = _manifest("mpijob", "MPIJob with Intel MPI")
