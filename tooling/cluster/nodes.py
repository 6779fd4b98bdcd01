"""The state of the containers of a cluster or job, as an engine describes it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from cpu_train_stack import contract
from cpu_train_stack.cli.printable import one_line
from tooling.cluster.compose import PROJECT_PREFIX
from tooling.engine import api, failures
from tooling.engine.client import connect
from tooling.engine.failures import EngineLostError

PROJECT_LABEL = "com.docker.compose.project"
SERVICE_LABEL = "com.docker.compose.service"
# The status of a container that was removed.
GONE = "gone"


@dataclass(frozen=True)
class Node:
    """The container of a node, or of mpirun's launcher. `finished_at` is RFC 3339 in UTC, empty while it runs.

    `status`: Docker's, or GONE. `cut_off`: the container runs, but has left the cluster's network.
    """

    name: str
    project: str = ""
    status: str = "exited"
    exit_code: int = 0
    out_of_memory: bool = False
    finished_at: str = ""
    error: str = ""
    cut_off: bool = False

    @property
    def cluster(self) -> str:
        """The name of the node's cluster."""
        return self.project.removeprefix(PROJECT_PREFIX)

    @property
    def running(self) -> bool:
        return self.status not in ("exited", "dead", GONE)

    def stall(self) -> str:
        """Why a running node cannot work on its job: a predicate such as "is paused"; empty if it can."""
        if self.status == "paused":
            return "is paused"
        return "is cut off: its container has left the cluster's network" if self.running and self.cut_off else ""

    def describe_end(self) -> str:
        """How the node ended: a predicate such as "exited with code 1"."""
        if self.status == GONE:
            return "is gone: its container was removed"
        if self.error:
            return f"could not be started: {self.error}"
        if self.out_of_memory and self.exit_code == contract.KILLED_EXIT_CODE:
            return "was killed: out of memory"
        how = f"exited with code {self.exit_code}"
        if self.exit_code > 128:
            how = f"ended by signal {self.exit_code - 128} (exit code {self.exit_code})"
        return f"{how}; one of its processes was killed earlier: out of memory" if self.out_of_memory else how


def of_checkout(cluster: str | None = None) -> list[Node]:
    """The nodes of this checkout's clusters, or of one. Raises UsageError if no engine answers."""
    project = PROJECT_PREFIX + cluster if cluster else None
    seen = [node for engine in api.running() for node in read(engine.endpoint, project)]
    return [node for node in seen if node.project.startswith(PROJECT_PREFIX)]


def read(endpoint: str, project: str | None = None) -> list[Node]:
    """The nodes of a Compose project, or of every project, sorted by name. Raises EngineLostError."""
    label = f"{PROJECT_LABEL}={project}" if project else PROJECT_LABEL
    with detect_lost_engine(endpoint), closing(connect(endpoint)) as client:
        # sparse: a container may be removed between the listing and `reload`
        containers = client.containers.list(all=True, filters={"label": label}, sparse=True)
        seen = []
        for container in containers:
            try:
                container.reload()
            except failures.NotFound:
                continue
            seen.append(_node(container.attrs, container.labels))
        return sorted(seen, key=lambda node: node.name)


@contextmanager
def detect_lost_engine(endpoint: str) -> Iterator[None]:
    """Converts a failure to reach the engine into EngineLostError. The engine's own errors reach the caller."""
    try:
        yield
    except failures.APIError:
        raise
    except (failures.DockerException, failures.RequestException) as error:
        raise EngineLostError(f"the engine at {endpoint} does not answer: {_cause(error)}") from error


def _cause(error: BaseException) -> str:
    """The kernel's message if an OSError caused the library's error, otherwise the library's message."""
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, OSError) and found.strerror:
            return str(found.strerror)
        found = found.__cause__ or found.__context__
    return " ".join(str(error).split())


def first_failure(nodes: Sequence[Node], expected: Sequence[str]) -> Node | None:
    """The node that failed first, or None. An expected node without a container has failed too."""
    failed = [node for node in nodes if not node.running and (node.exit_code != 0 or node.error)]
    if failed:
        return min(failed, key=lambda node: node.finished_at)
    removed = sorted(set(expected) - {node.name for node in nodes})
    if removed:
        return Node(removed[0], status=GONE, exit_code=contract.KILLED_EXIT_CODE)
    return None


def _node(attributes: Mapping[str, Any], labels: Mapping[str, str]) -> Node:
    node = of_state(labels.get(SERVICE_LABEL, ""), attributes["State"])
    cut_off = node.status == "running" and not attributes["NetworkSettings"]["Networks"]
    return replace(node, project=labels.get(PROJECT_LABEL, ""), cut_off=cut_off)


def of_state(name: str, state: Mapping[str, Any]) -> Node:
    """A container with this State, of `docker inspect`."""
    return Node(
        name,
        status=one_line(str(state["Status"])),
        exit_code=int(str(state["ExitCode"])),
        out_of_memory=bool(state["OOMKilled"]),
        finished_at=str(state["FinishedAt"]),
        error=one_line(str(state.get("Error") or "")),
    )
