"""The tasks for local clusters. `logs`, `status` and `stop` are also for jobs on hosts."""

from typing import Annotated

from tooling.basis.say import say
from tooling.cli import jobs
from tooling.cli.options import Task
from tooling.cluster import demo as cluster_demo
from tooling.cluster import up as cluster_up
from tooling.cluster.compose import LauncherOption, NodesOption, RanksPerNodeOption
from tooling.image.choice import Choice


@Task
def demo(
    choice: Choice,
    nodes: NodesOption = 2,
    ranks_per_node: RanksPerNodeOption = 1,
    backend: Annotated[
        str | None, "the process group: ccl or gloo; default: ccl, or gloo for an image without ccl"
    ] = None,
    launcher: LauncherOption = "torchrun",
) -> None:
    """Build the image, fine-tune a real model in bf16 on two containers, show the results."""
    cluster_demo.demo(choice, nodes, ranks_per_node, backend or choice.backend, launcher, say)


@Task
def up(request: cluster_up.Request) -> None:
    """Run a command on a local cluster: ./inv up --nodes 2 -- train ..."""
    cluster_up.up(request)


@Task
def down(name: Annotated[str | None, "the cluster's name; default: the only cluster that is up"] = None) -> None:
    """Remove a cluster."""
    cluster_up.down(name)


@Task
def logs(
    name: Annotated[str | None, "name of the cluster or job; default: the only one"] = None,
    follow: Annotated[bool, "wait for more output"] = False,
) -> None:
    """Show the output of a cluster or a job, even after its end."""
    jobs.logs(name, follow)


@Task
def status(
    name: Annotated[str | None, "name of the cluster or job; default: the running job, or every cluster"] = None,
) -> None:
    """Show the state of the containers of a cluster or a job."""
    jobs.status(name)


@Task
def stop(
    name: Annotated[str | None, "name of the cluster or job; default: the running one"] = None,
) -> None:
    """End a cluster or a job."""
    jobs.stop(name)
