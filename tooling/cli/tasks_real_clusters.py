"""The tasks for clusters of several machines, except the manifests of Kubernetes."""

from typing import Annotated

from tooling.basis.console import HtmlOption, JsonOption
from tooling.cli.options import Task
from tooling.forecast import command as forecast
from tooling.forecast.request import Request
from tooling.hosts import launch as host_jobs
from tooling.hosts.job import Job


@Task
def plan_cluster(request: Request, json: JsonOption = False, html: HtmlOption = None) -> None:
    """Predict how long a job takes on N nodes, and how many nodes are worth using, with error bars."""
    forecast.run(request, json, html)


@Task
def launch(
    job: Job,
    detach: Annotated[bool, "leave the job running: see ./inv logs, ./inv status, ./inv stop"] = False,
    dry_run: Annotated[bool, "print every command without running any"] = False,
) -> None:
    """Run a command on bare-metal hosts, over ssh: ./inv launch --hosts hosts -- train ..."""
    host_jobs.launch(job, detach, dry_run)
