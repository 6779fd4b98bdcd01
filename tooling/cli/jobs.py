"""`./inv logs`, `status` and `stop`, each for local clusters and for jobs on hosts."""

from rich.table import Table

from tooling.basis.console import console
from tooling.basis.errors import UsageError
from tooling.cluster import compose, run, up
from tooling.hosts import control, record
from tooling.hosts.record import Record


def logs(name: str | None, follow: bool) -> None:
    """Print the output of a cluster or a job, even after its end."""
    job = find(name)
    if job:
        control.logs(job, follow)
    else:
        up.logs(name, follow)


def status(name: str | None) -> None:
    """Print the state of each container of a cluster or a job."""
    job = find(name)
    table = Table("host" if job else "cluster", "container" if job else "node", "state")
    for row in control.status(job) if job else up.status(name):
        table.add_row(*row)
    console(200).print(table)


def stop(name: str | None) -> None:
    """End a cluster or a job. Its log and its output stay."""
    job = find(name)
    if job:
        control.stop(job)
    else:
        up.down(name)


def find(name: str | None) -> Record | None:
    """The job on hosts with this name, or None if a local cluster is meant. A running job takes precedence."""
    if name is None:
        running = [found for found in map(record.read, record.names()) if found and record.runs(found)]
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
    return None if any(one.is_file() and one.stat().st_mtime > mine.stat().st_mtime for one in newer) else job
