"""`./inv logs`, `status` and `stop`: one command each for local clusters and for jobs on hosts."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from tooling.basis.errors import UsageError
from tooling.cluster import nodes, run, up
from tooling.cluster.compose import PROJECT_PREFIX
from tooling.engine import api
from tooling.hosts import control, record
from tooling.hosts.record import Record


def logs(name: str | None, follow: bool) -> None:
    """Prints the output of a cluster or a job, also after its end."""
    job = find(name)
    if job:
        control.logs(job, follow)
    else:
        up.logs(name, follow)


def status(name: str | None) -> None:
    """Prints each container of a cluster or a job with its state."""
    job = find(name)
    if job:
        rows = control.status(job)
    else:
        rows = [(node.project.removeprefix(PROJECT_PREFIX), node.name, _state(node)) for node in _nodes(name)]
    table = Table("host" if job else "cluster", "container" if job else "node", "state")
    for row in rows:
        table.add_row(*row)
    console = Console()
    if not console.is_terminal:
        console.width = 200  # a file gets unfolded lines
    console.print(table)


def stop(name: str | None) -> None:
    """Ends a cluster or a job; its log and its output stay."""
    job = find(name)
    if job:
        control.stop(job)
    else:
        up.down(name)


def find(name: str | None) -> Record | None:
    """The job that `name` means, None where it is a local cluster's. A job that runs comes before a cluster."""
    if name is None:
        running = [found for found in map(record.read, record.names()) if found and record.runs(found)]
        if len(running) > 1:
            raise UsageError(
                f"several jobs are running ({', '.join(job.name for job in running)}): choose one with --name"
            )
        return running[0] if running else None
    job = record.read(run.check_name(name))
    if job is None or record.runs(job):
        return job
    # The cluster is up, or both have ended: the one that wrote last is meant.
    log = run.folder_of(name) / "log.txt"
    mine = record.folder_of(name) / "job.json"
    newer = (run.folder_of(name) / "compose.yaml", log)
    return None if any(one.is_file() and one.stat().st_mtime > mine.stat().st_mtime for one in newer) else job


def _nodes(name: str | None) -> list[nodes.Node]:
    endpoint = api.running().endpoint
    project = PROJECT_PREFIX + run.check_name(name) if name else None
    seen = [node for node in nodes.read(endpoint, project) if node.project.startswith(PROJECT_PREFIX)]
    if not seen:
        raise UsageError(f"no cluster or job is named {name!r}" if name else "no cluster or job is running")
    return seen


def _state(node: nodes.Node) -> str:
    return node.held_back() or ("running" if node.running else node.describe())
