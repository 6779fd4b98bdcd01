"""The tasks of ./inv: a namespace only, the work is in tooling/."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from invoke.context import Context
from invoke.tasks import Task
from invoke.tasks import task as invoke_task

from tooling import bench as measurements
from tooling import bench_launch as launchers
from tooling import builds, host_doctor, locks, matrix, pins, reliability, running, suite, variants
from tooling import conformance as torchs_suite
from tooling import demo as demonstration
from tooling import push as pushing
from tooling import reproduce as reproducing
from tooling import sanitize as sanitizing
from tooling import sbom as bill
from tooling import soak as soaking
from tooling import up as clusters
from tooling.choice import Choice
from tooling.errors import UsageError
from tooling.hosts import request as hosts_request
from tooling.kubernetes import manifest as manifests
from tooling.kubernetes.request import DEFAULT_NAME, Options
from tooling.program import remainder_argv
from tooling.say import say

# One-letter flags made from the first letters of long ones are a riddle, not a help.
task = partial(invoke_task, auto_shortflags=False)


@task(name="matrix")
def show_matrix(_c: Context, json: bool = False) -> None:
    """Show the pins: one row is one set of versions that fit together."""
    matrix.show(pins.load(), as_json=json)


@task(name="check-matrix", help={"pin": "only this row"})
def check_matrix(_c: Context, pin: str | None = None) -> None:
    """Check every row: versions that fit together, and wheels that pip finds for it."""
    loaded = pins.load()
    matrix.check([loaded.pin(pin)] if pin else list(loaded.pins.values()), say)


SET_HELP = "PACKAGE=VERSION instead of the row's, torch=2.14.1 for example; may be repeated"
TORCH_SOURCE_HELP = "row: the CPU build; default: the build that the default index has (CUDA, larger by gigabytes)"
IMAGE_LOCK_HELP = "an image.lock.json of ./inv push: that image, by its digest, instead of one that is built"


@task(
    iterable=["set"],
    help={
        "pin": "a row of ./inv matrix; the default pin needs no flag",
        "all": "every row that has a lock",
        "set": SET_HELP,
        "torch-source": TORCH_SOURCE_HELP,
    },
)
def build(
    _c: Context, set: list[str], pin: str | None = None, all: bool = False, torch_source: str = "row"
) -> None:
    """Make the image cpu-train-stack:PIN."""
    if all and (pin or set):
        raise UsageError("build takes --all, or --pin and --set: give one of the two")
    if all:
        builds.every(torch_source, say)
    else:
        builds.one(pin, set, torch_source, say)


@task(
    help={
        "pin": "a row of ./inv matrix; the default pin needs no flag",
        "torch-source": TORCH_SOURCE_HELP,
    }
)
def lock(_c: Context, pin: str | None = None, torch_source: str = "row") -> None:
    """Make a pin's lock anew: images/locks/PIN.txt, every wheel with its sha256."""
    say(f"wrote {locks.write(variants.choose(pin, (), torch_source), say)}")


@task(
    help={
        "pin": "a row of ./inv matrix; the default pin needs no flag",
        "torch-source": TORCH_SOURCE_HELP,
        "json": "one JSON document on standard output instead of a table",
    }
)
def reproduce(_c: Context, pin: str | None = None, torch_source: str = "row", json: bool = False) -> None:
    """Build a pin twice without the build cache and compare the layers, down to the first file that differs."""
    reproducing.run(Choice(pin, torch_source=torch_source), json, say)


@task(
    help={
        "registry": "HOST[:PORT]/NAME; credentials come from docker login",
        "pin": "a row of ./inv matrix; the default pin needs no flag",
        "torch-source": TORCH_SOURCE_HELP,
        "alias": "also move the tag PIN to this image",
        "output": "folder for image.lock.json and image.spdx.json",
    }
)
def push(
    _c: Context,
    registry: str = "",
    pin: str | None = None,
    torch_source: str = "row",
    alias: bool = False,
    output: str = ".",
) -> None:
    """Push the image that was tested, under a tag that is never moved, and write image.lock.json."""
    pushing.run(registry, Choice(pin, torch_source=torch_source), alias, output, say)


@task(
    help={
        "pin": "a row of ./inv matrix; the default pin needs no flag",
        "torch-source": TORCH_SOURCE_HELP,
        "output": "the file; default .cache/sbom/PIN.spdx.json",
    }
)
def sbom(_c: Context, pin: str | None = None, torch_source: str = "row", output: str | None = None) -> None:
    """Write an image's Debian and Python packages as SPDX 2.3 JSON."""
    bill.run(Choice(pin, torch_source=torch_source), output, say)


@task(
    iterable=["set"],
    help={
        "pin": "a row of ./inv matrix; the default pin needs no flag",
        "nodes": "containers to start",
        "ranks-per-node": "training processes in each",
        "backend": "the process group: ccl or gloo",
        "launcher": "what starts the ranks: torchrun or mpirun",
        "set": SET_HELP,
        "torch-source": TORCH_SOURCE_HELP,
        "image-lock": IMAGE_LOCK_HELP,
    },
)
def demo(
    _c: Context,
    set: list[str],
    pin: str | None = None,
    nodes: int = 2,
    ranks_per_node: int = 1,
    backend: str = "ccl",
    launcher: str = "torchrun",
    torch_source: str = "row",
    image_lock: str | None = None,
) -> None:
    """Build, start two containers, fine-tune a real model in bf16, show what came of it."""
    choice = Choice(pin, tuple(set), torch_source, image_lock)
    demonstration.run(choice, nodes, ranks_per_node, backend, launcher, say)


@task(
    name="bench-collectives",
    help={
        "pin": "a row of ./inv matrix; the default pin needs no flag",
        "nodes": "containers with one rank each that are measured after the one container; 1: none",
        "ranks": "ranks in the one container",
        "sizes": "of the tensors, 4K,25M for example; default 4K to 100M, and more than all_reduce",
        "seconds": "to measure each size, about",
        "output": "folder for the JSON file and the PNG; default .cache/bench",
        "json": "one JSON document on standard output instead of a table",
    },
)
def bench_collectives(
    _c: Context,
    pin: str | None = None,
    nodes: int = 2,
    ranks: int = 2,
    sizes: str | None = None,
    seconds: float = 2.0,
    output: str | None = None,
    json: bool = False,
) -> None:
    """Measure the process group beside what limits it: ./inv bench collectives."""
    options = measurements.options_of(sizes, seconds)
    measurements.collectives(pin, nodes, ranks, options, output, json, say)


@task(
    name="bench-launch",
    help={
        "pin": "a row of ./inv matrix; the default pin needs no flag",
        "ranks": "training processes of launch and torchrun",
        "rounds": "how often each is measured, in turn",
        "steps": "training steps that count, each time",
        "json": "one JSON document on standard output instead of a table",
    },
)
def bench_launch(
    _c: Context, pin: str | None = None, ranks: int = 2, rounds: int = 5, steps: int = 10, json: bool = False
) -> None:
    """Train the same under launch, torchrun and run_cpu: ./inv bench launch."""
    launchers.run(pin, ranks, rounds, (f"--steps={steps}",), json, say)


@task(
    iterable=["env", "set"],
    help={
        "pin": "a row of ./inv matrix; the default pin needs no flag",
        "set": SET_HELP,
        "torch-source": TORCH_SOURCE_HELP,
        "image-lock": IMAGE_LOCK_HELP,
        "nodes": "containers to start; the host's cores are split over them",
        "ranks-per-node": "training processes in each",
        "name": "of the cluster: two clusters can run beside each other",
        "data": "a folder of yours, read-only at /data in every node",
        "output": "a folder that every node may write to, at /output; default .cache/clusters/NAME/output",
        "env": "NAME=VALUE for every rank, or NAME to hand on your own value; may be repeated",
        "offline": "no network but the cluster's own",
        "detach": "leave the cluster running: ./inv logs, ./inv down",
        "launcher": "what starts the ranks: torchrun, or Intel MPI's mpirun over ssh",
        "memory": "limit of each node: 4g, for example",
        "max-restarts": "after a failure start anew, from the last checkpoint, so many times",
    },
)
def up(
    _c: Context,
    env: list[str],
    set: list[str],
    pin: str | None = None,
    nodes: int = 2,
    ranks_per_node: int = 1,
    name: str = "cluster",
    data: str | None = None,
    output: str | None = None,
    offline: bool = False,
    detach: bool = False,
    launcher: str = "torchrun",
    memory: str | None = None,
    max_restarts: int = 0,
    torch_source: str = "row",
    image_lock: str | None = None,
) -> None:
    """Run a command on a local cluster: ./inv up --nodes 2 -- train ..."""
    clusters.up(
        clusters.Request(
            command=tuple(remainder_argv()),
            choice=Choice(pin, tuple(set), torch_source, image_lock),
            nodes=nodes,
            ranks_per_node=ranks_per_node,
            launcher=launcher,
            name=name,
            data=data,
            output=output,
            environment=tuple(env),
            memory=memory,
            offline=offline,
            detach=detach,
            max_restarts=max_restarts,
        )
    )


def _manifest(kind: str, what: str) -> Task[Callable[..., None]]:
    """The task `manifest KIND`: the same options for each."""

    def manifest(
        _c: Context,
        node_selector: list[str],
        env: list[str],
        secret_env: list[str],
        name: str = DEFAULT_NAME,
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
        options = Options(
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
        manifests.run(kind, options, output, say)

    manifest.__doc__ = f"Write a Kubernetes {what}: ./inv manifest {kind} ... -- train ..."
    made: Task[Callable[..., None]] = task(
        name=f"manifest-{kind}",
        iterable=["node_selector", "env", "secret_env"],
        help={
            "name": "of the job; its pods' names begin with it",
            "namespace": "default: that of kubectl's context",
            "image-lock": "an image.lock.json of ./inv push: that image, by its digest",
            "image": "HOST/NAME@sha256:… in place of --image-lock",
            "nodes": "pods that train, one a node of the cluster",
            "ranks-per-node": "training processes in each; default one for each NUMA node (mpijob: 1)",
            "cpus": "of each pod, as request and limit; leave the node some",
            "memory": "of each pod, as request and limit: 128Gi, for example; /dev/shm counts",
            "node-cpus": "hardware threads of a node (default twice --cpus): for the size of /dev/shm",
            "node-memory": "of a node: a warning if --memory leaves nothing of it",
            "pvc": "the PersistentVolumeClaim for models, data and output, mounted at /pvc",
            "node-selector": "KEY=VALUE that a node's labels must have; may be repeated",
            "env": "NAME=VALUE for every rank; may be repeated",
            "secret-env": "NAME=SECRET/KEY: a variable for every rank from a secret; may be repeated",
            "pull-secret": "the secret with the registry's credentials",
            "max-restarts": "after a failure start anew, from the last checkpoint, so many times",
            "output": "the file; default standard output",
        },
    )(manifest)
    return made


manifest_pytorchjob = _manifest("pytorchjob", "PyTorchJob")
manifest_trainjob = _manifest("trainjob", "TrainJob with its runtime")
manifest_mpijob = _manifest("mpijob", "MPIJob with Intel MPI")


@task(
    help={
        "only": "a regular expression that a fault's name has to contain: disk-full, for example",
        "launcher": "torchrun or mpirun; default both",
    },
)
def faults(_c: Context, only: str = "", launcher: str = "") -> None:
    """Break running jobs in every way, check how they end, and go on from their checkpoints."""
    reliability.run(only, launcher, say)


@task(help={"name": "of the cluster; without it, the only one that is up"})
def down(_c: Context, name: str | None = None) -> None:
    """Take a cluster away."""
    clusters.down(name)


@task(
    iterable=["env"],
    help={
        "hosts": "a file with a host's name on each line, as ssh knows it; rank 0 is on the first",
        "ranks-per-node": "training processes on each; default what the file's slots say, else 1",
        "launcher": "what starts the ranks: torchrun, or Intel MPI's mpirun over ssh between the containers",
        "name": "of the job: two can run beside each other, with different ports",
        "pin": "a row of ./inv matrix, whose image is on every host; the default pin needs no flag",
        "image-lock": "an image.lock.json of ./inv push: that image, by digest, pulled where it is not present",
        "data": "a folder of every host, read-only at /data",
        "output": "a folder of every host, written to, at /output; default cpu-train-stack/NAME in the home there",
        "hub": "a folder of every host for what comes from Hugging Face's hub: HF_HOME",
        "env": "NAME=VALUE for every rank, or NAME to hand on your own value unseen; may be repeated",
        "memory": "limit of each container: 64g, for example",
        "port": "where the ranks meet; the 499 ports behind it are the job's too",
        "detach": "leave the job running: ./inv logs, ./inv status, ./inv stop",
        "dry-run": "show every command, run none",
    },
)
def launch(
    _c: Context,
    env: list[str],
    hosts: str = "",
    ranks_per_node: int = 0,
    launcher: str = "torchrun",
    name: str = "job",
    pin: str | None = None,
    image_lock: str | None = None,
    data: str | None = None,
    output: str | None = None,
    hub: str | None = None,
    memory: str | None = None,
    port: int = 29500,
    detach: bool = False,
    dry_run: bool = False,
) -> None:
    """Run a command on bare-metal hosts, over ssh: ./inv launch --hosts hosts -- train ..."""
    hosts_request.run(
        hosts_request.Request(
            command=tuple(remainder_argv()),
            choice=Choice(pin, image_lock=image_lock),
            hosts=hosts,
            ranks_per_node=ranks_per_node or None,
            launcher=launcher,
            name=name,
            data=data,
            output=output,
            hub=hub,
            environment=tuple(env),
            memory=memory,
            port=port,
            detach=detach,
            dry_run=dry_run,
        )
    )


@task(
    help={"name": "of the cluster or job; without it, the only one there is", "follow": "wait for more"},
)
def logs(_c: Context, name: str | None = None, follow: bool = False) -> None:
    """Show the output of a cluster or a job, also after its end."""
    running.logs(name, follow)


@task(help={"name": "of the cluster or job; without it, the job that runs, or every cluster"})
def status(_c: Context, name: str | None = None) -> None:
    """Show what the containers of a cluster or a job do."""
    running.status(name)


@task(help={"name": "of the cluster or job; without it, the only one that runs"})
def stop(_c: Context, name: str | None = None) -> None:
    """End a cluster or a job."""
    running.stop(name)


@task()
def doctor(_c: Context, json: bool = False) -> None:
    """Show what this machine has and lacks, with the mend."""
    host_doctor.run(as_json=json)


@task(
    help={
        "pin": "a row of ./inv matrix; the default pin needs no flag",
        "ranks": "of one container",
        "only": "a regular expression that a test's name has to contain",
        "json": "one JSON document on standard output instead of tables",
    },
)
def conformance(_c: Context, pin: str | None = None, ranks: int = 3, only: str = "", json: bool = False) -> None:
    """Run torch's own suite for process groups with ccl and with gloo, and compare."""
    torchs_suite.run(pin, ranks, only, json, say)


@task(
    help={
        "pin": "a row of ./inv matrix; the default pin needs no flag",
        "jobs": "one after another, each on a fresh cluster",
        "nodes": "containers of each job",
        "ranks-per-node": "processes in each",
        "backend": "the process group: ccl or gloo",
    },
)
def soak(
    _c: Context,
    pin: str | None = None,
    jobs: int = 100,
    nodes: int = 2,
    ranks_per_node: int = 1,
    backend: str = "ccl",
) -> None:
    """Run many short jobs, check every result, keep the logs of those that fail."""
    soaking.run(pin, jobs, nodes, ranks_per_node, backend, say)


@task(help={"pin": "a row of ./inv matrix; the default pin needs no flag"})
def sanitize(_c: Context, pin: str | None = None) -> None:
    """Run every collective on a ccl backend compiled with AddressSanitizer."""
    sanitizing.run(pin, say)


@task(name="test", help={"unit": "only the part that needs no Docker"})
def run_suite(_c: Context, unit: bool = False) -> None:
    """Run the checks (ruff, mypy) and the whole test suite."""
    suite.run(unit_only=unit)
