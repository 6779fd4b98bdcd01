"""The tasks that run a job: on a local cluster, or on hosts."""

from __future__ import annotations

from invoke.context import Context

from entrypoints import contract
from tooling.basis.say import say
from tooling.checks.faults import reliability
from tooling.cli import jobs
from tooling.cli.options import IMAGE_LOCK_HELP, PIN_HELP, SET_HELP, TORCH_SOURCE_HELP, task
from tooling.cli.parser import remainder_argv
from tooling.cluster import demo as demonstration
from tooling.cluster import up as clusters
from tooling.hosts import launch as host_jobs
from tooling.hosts.job import Job
from tooling.image.choice import Choice


@task(
    iterable=["set"],
    help={
        "pin": PIN_HELP,
        "nodes": "containers to start",
        "ranks-per-node": "training processes in each",
        "backend": "the process group: ccl or gloo; default ccl where the image has one",
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
    backend: str | None = None,
    launcher: str = "torchrun",
    torch_source: str = "row",
    image_lock: str | None = None,
) -> None:
    """Build the image, fine-tune a real model in bf16 on two containers, show the results."""
    choice = Choice(pin, tuple(set), torch_source, image_lock)
    demonstration.run(choice, nodes, ranks_per_node, backend or choice.backend, launcher, say)


@task(
    iterable=["env", "set"],
    help={
        "pin": PIN_HELP,
        "set": SET_HELP,
        "torch-source": TORCH_SOURCE_HELP,
        "image-lock": IMAGE_LOCK_HELP,
        "nodes": "containers to start; the host's physical cores are divided among them",
        "ranks-per-node": "training processes in each",
        "name": "of the cluster: clusters with different names can run at the same time",
        "data": "a folder on this machine, mounted read-only at /data in every node",
        "output": "a folder that every node can write to, mounted at /output; default .cache/clusters/NAME/output",
        "env": "NAME=VALUE for every rank, or NAME to pass your own value; may be repeated",
        "offline": "no network except the cluster's own",
        "detach": "leave the cluster running: ./inv logs, ./inv down",
        "launcher": "what starts the ranks: torchrun, or Intel MPI's mpirun over ssh",
        "memory": "limit of each node: 4g, for example",
        "max-restarts": "how often to restart after a failure, from the last checkpoint",
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


@task(
    help={
        "only": "a regular expression for the names of the faults: disk-full, for example",
        "launcher": "torchrun or mpirun; default both",
    },
)
def faults(_c: Context, only: str = "", launcher: str = "") -> None:
    """Inject every fault into running jobs, check how the jobs end, and resume from their checkpoints."""
    reliability.run(only, launcher, say)


@task(
    iterable=["env"],
    help={
        "hosts": "a file with one host on each line, named as in ~/.ssh/config; rank 0 runs on the first",
        "ranks-per-node": "training processes on each; default: the slots in the file, else 1",
        "launcher": "what starts the ranks: torchrun, or Intel MPI's mpirun over ssh between the containers",
        "name": "of the job: jobs with different names and ports can run at the same time",
        "pin": "a row of ./inv matrix whose image is on every host; the default pin needs no flag",
        "image-lock": "the image named in this image.lock.json of ./inv push, pulled by digest where missing",
        "data": "a folder on every host, mounted read-only at /data",
        "output": "a folder on every host, mounted writable at /output; default ~/cpu-train-stack/IDENTITY/NAME",
        "hub": "a folder on every host for downloads from Hugging Face's hub (HF_HOME)",
        "env": "NAME=VALUE for every rank, or NAME to pass your own value unseen; may be repeated",
        "memory": "limit of each container: 64g, for example",
        "port": "where the ranks meet; the job also uses the next 499 ports",
        "detach": "leave the job running: ./inv logs, ./inv status, ./inv stop",
        "dry-run": "show every command without running any",
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
    port: int = contract.MASTER_PORT,
    detach: bool = False,
    dry_run: bool = False,
) -> None:
    """Run a command on bare-metal hosts, over ssh: ./inv launch --hosts hosts -- train ..."""
    job = Job(
        command=tuple(remainder_argv()),
        hosts=hosts,
        ranks_per_node=ranks_per_node or None,
        launcher=launcher,
        name=name,
        pin=pin,
        image_lock=image_lock,
        data=data,
        output=output,
        hub=hub,
        env=tuple(env),
        memory=memory,
        port=port,
    )
    host_jobs.launch(job, detach, dry_run)


@task(help={"name": "of the cluster; default: the only one that is up"})
def down(_c: Context, name: str | None = None) -> None:
    """Remove a cluster."""
    clusters.down(name)


@task(
    help={"name": "of the cluster or job; default: the only one", "follow": "wait for more output"},
)
def logs(_c: Context, name: str | None = None, follow: bool = False) -> None:
    """Show the output of a cluster or a job, even after its end."""
    jobs.logs(name, follow)


@task(help={"name": "of the cluster or job; default: the running job, or every cluster"})
def status(_c: Context, name: str | None = None) -> None:
    """Show the state of the containers of a cluster or a job."""
    jobs.status(name)


@task(help={"name": "of the cluster or job; default: the only one that is running"})
def stop(_c: Context, name: str | None = None) -> None:
    """End a cluster or a job."""
    jobs.stop(name)
