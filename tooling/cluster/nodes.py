"""The state of a cluster's containers, read through the engine's API."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import requests
from docker.errors import APIError, DockerException, NotFound

from entrypoints import contract
from tooling.basis.errors import EngineLostError
from tooling.engine.client import connect

PROJECT_LABEL = "com.docker.compose.project"
SERVICE_LABEL = "com.docker.compose.service"
_REMOVED = "is gone: its container was removed"


@dataclass(frozen=True)
class Node:
    """One container. `finished_at` is RFC 3339 in UTC, empty while it runs."""

    name: str
    project: str
    running: bool
    exit_code: int
    out_of_memory: bool
    finished_at: str
    error: str = ""
    paused: bool = False
    cut_off: bool = False

    def held_back(self) -> str:
        """What keeps the node, which runs, from its job, in words; empty where nothing does."""
        if not self.running:
            return ""
        if self.paused:
            return "is paused"
        return "is cut off: its container has left the cluster's network" if self.cut_off else ""

    def describe(self) -> str:
        """How the node ended, in words."""
        if self.error == _REMOVED:
            return self.error
        if self.error:
            return f"could not be started: {self.error}"
        if self.out_of_memory:
            return "was killed: out of memory"
        if self.exit_code > 128:
            return f"ended by signal {self.exit_code - 128} (exit code {self.exit_code})"
        return f"exited with code {self.exit_code}"


def read(endpoint: str, project: str | None = None) -> list[Node]:
    """The nodes of a cluster, or those of every cluster, sorted by name. Raises EngineLostError."""
    label = f"{PROJECT_LABEL}={project}" if project else PROJECT_LABEL
    with asking(endpoint), closing(connect(endpoint)) as client:
        # sparse: a container may vanish between the listing and `reload`
        containers = client.containers.list(all=True, filters={"label": label}, sparse=True)
        seen = []
        for container in containers:
            try:
                container.reload()
            except NotFound:
                continue
            seen.append(_node(container.attrs, container.labels))
        return sorted(seen, key=lambda node: node.name)


@contextmanager
def asking(endpoint: str) -> Iterator[None]:
    """Raises EngineLostError if the engine does not answer. Errors in its answer reach the caller."""
    try:
        yield
    except APIError:
        raise
    except (DockerException, requests.RequestException) as error:
        raise EngineLostError(f"the Docker Engine at {endpoint} does not answer: {_cause(error)}") from error


def _cause(error: BaseException) -> str:
    """The kernel's message behind the libraries' errors, or else their own message."""
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, OSError) and found.strerror:
            return str(found.strerror)
        found = found.__cause__ or found.__context__
    return " ".join(str(error).split())


def first_failure(nodes: Sequence[Node], expected: Sequence[str]) -> Node | None:
    """The node that failed first; one whose container is gone has failed too. None if all is well so far."""
    failed = [node for node in nodes if not node.running and (node.exit_code != 0 or node.error)]
    if failed:
        return min(failed, key=lambda node: node.finished_at)
    vanished = sorted(set(expected) - {node.name for node in nodes})
    if vanished:
        return Node(vanished[0], "", False, contract.KILLED_EXIT_CODE, False, "", _REMOVED)
    return None


def _node(attributes: dict[str, Any], labels: dict[str, str]) -> Node:
    state = attributes["State"]
    return Node(
        name=labels.get(SERVICE_LABEL, ""),
        project=labels.get(PROJECT_LABEL, ""),
        running=state["Status"] not in ("exited", "dead"),
        exit_code=int(str(state["ExitCode"])),
        out_of_memory=bool(state["OOMKilled"]),
        finished_at=str(state["FinishedAt"]),
        error=str(state.get("Error") or ""),
        paused=bool(state["Paused"]),
        cut_off=state["Status"] == "running" and not attributes["NetworkSettings"]["Networks"],
    )
