"""The tasks for local clusters and for jobs on hosts."""

from typing import Annotated

from rich.table import Table

from cpu_train_stack.cli import files
from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.say import say
from tooling.basis.console import JsonOption, console
from tooling.bench.forecast import command as forecast
from tooling.bench.forecast.request import ForecastRequest
from tooling.cli.options import task
from tooling.cluster import compose, run
from tooling.cluster import demo as cluster_demo
from tooling.cluster import up as cluster_up
from tooling.cluster.compose import LauncherOption, NodesOption, RanksPerNodeOption
from tooling.hosts import control, record
from tooling.hosts import launch as host_jobs
from tooling.hosts.job import Job
from tooling.hosts.record import Record
from tooling.image.choice import Choice

_DEFAULT = "default: the running one, or the one that ended last"


@task
def demo(
    choice: Choice,
    nodes: NodesOption = 2,
    ranks_per_node: RanksPerNodeOption = 1,
    backend: Annotated[str, "the process group: ccl or gloo"] = "ccl",
    launcher: LauncherOption = "torchrun",
    task: cluster_demo.TaskOption = cluster_demo.CLASSIFICATION,
) -> None:
    """Build the image, fine-tune a real model in bf16 on two containers, show the results."""
    cluster_demo.demo(choice, nodes, ranks_per_node, backend, launcher, task)


@task
def up(request: cluster_up.Request) -> None:
    """Run a command on a local cluster: ./inv up --nodes 2 -- train ..."""
    cluster_up.up(request)


@task
def down(name: Annotated[str | None, "the cluster's name; default: the only cluster that is up"] = None) -> None:
    """Remove a cluster. Its log and its output stay."""
    cluster_up.down(name)


@task
def logs(
    name: Annotated[str | None, f"name of the cluster or job; {_DEFAULT}"] = None,
    follow: Annotated[bool, "wait for more output"] = False,
) -> None:
    """Show the output of a cluster or a job, even after its end."""
    name = _ended_last() if name is None else name
    if job := find(name):
        control.logs(job, follow)
    else:
        cluster_up.logs(name, follow)


@task
def watch(
    name: Annotated[str | None, f"name of the cluster or job; {_DEFAULT}"] = None,
) -> None:
    """Follow a job: progress, speed, losses, and what each rank waits for."""
    name = _ended_last() if name is None else name
    if job := find(name):
        control.watch(job)
    else:
        cluster_up.watch(name)


@task
def status(
    name: Annotated[str | None, "name of the cluster or job; default: the running job, or every cluster"] = None,
) -> None:
    """Show the state of the containers of a cluster or a job."""
    job = find(name)
    table = Table("host" if job else "cluster", "container" if job else "node", "state")
    for row in control.status(job) if job else cluster_up.status(name):
        table.add_row(*row)
    console(200).print(table)


@task
def stop(
    name: Annotated[str | None, "name of the cluster or job; default: the running one"] = None,
) -> None:
    """End a job on hosts, or remove a cluster as down does. The log and the output stay."""
    if job := find(name):
        control.stop(job)
    else:
        cluster_up.down(name)


@task
def plan_cluster(request: ForecastRequest, json: JsonOption = False) -> None:
    """Predict how long a job takes on N nodes, and how many nodes are worth using, with error bars."""
    forecast.run(request, json)


@task
def launch(
    job: Job,
    detach: Annotated[bool, "leave the job running: see ./inv logs, ./inv status, ./inv stop"] = False,
    dry_run: Annotated[bool, "print every command without running any"] = False,
) -> None:
    """Run a command on bare-metal hosts, over ssh: ./inv launch --hosts hosts -- train ..."""
    host_jobs.launch(job, detach, dry_run)


def find(name: str | None) -> Record | None:
    """The job on hosts with this name, or None if a local cluster is meant. A running job takes precedence."""
    if name is None:
        running = record.running()
        if len(running) > 1:
            raise UsageError(
                f"several jobs are running ({', '.join(job.name for job in running)}): choose one with --name"
            )
        return running[0] if running else None
    job = record.read(compose.check_name(name))
    if job is None or record.runs(job):
        return job
    # The job has ended. If there is also a cluster of this name, the newer of the two is meant.
    log = run.folder_of(name) / "log.txt"
    mine = record.folder_of(name) / "job.json"
    newer = (run.folder_of(name) / "compose.yaml", log)
    return None if any(files.written(one) > files.written(mine) for one in newer) else job


def _ended_last() -> str | None:
    """The name of the job or cluster that ended last; None if one is running, or none has ended."""
    if find(None):
        return None
    times = cluster_up.ended()
    for name in record.names():
        times[name] = max(times.get(name, 0.0), record.ended_at(name))
    try:
        if any(run.CLUSTERS.glob("*/compose.yaml")) and cluster_up.running():
            return None
    except UsageError:  # no engine answers
        if not times:
            raise
    names = sorted(times, key=lambda name: times[name], reverse=True)
    if len(names) > 1:
        say(f"{names[0]} ended last; choose another one with --name: {', '.join(names[1:])}")
    return names[0] if names else None
