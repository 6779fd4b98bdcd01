"""`./inv bench scaling`: steps on 1, 2 and 4 containers of equal cores, and the prediction for 4 from 1 and 2."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from entrypoints.machine import topology
from tooling.basis.errors import UsageError
from tooling.basis.say import Say
from tooling.bench import collectives, output, plots, scaling_report
from tooling.cluster.compose import CPU_PERIOD_US, ClusterSpec
from tooling.engine import api
from tooling.forecast import published, step
from tooling.image import build
from tooling.pins import parse

CLUSTER = "scaling"


def run(
    pin_name: str | None,
    nodes: Sequence[int],
    backends: Sequence[str],
    seconds: float,
    cores: float,
    ratio: float,
    output_folder: str | None,
    as_json: bool,
    say: Say,
) -> None:
    """Measure all numbers of `nodes` in turn, in one cluster with the largest number.

    Each node has `cores`, or an equal part of the machine if `cores` is 0. The batch is chosen so that
    communication takes `ratio` of the time of computing; 0 means the ratio in the guides' jobs.

    Write scaling-TIME.json and .png to the output folder, and print a table or, with `as_json`, the document.
    Raises Exit with the cluster's exit code if a measurement fails.
    """
    if not nodes or min(nodes) < 1 or 1 not in nodes:
        raise UsageError(f"bench: --nodes is {','.join(map(str, nodes))}, expected 1 and other numbers: 1,2,4")
    if not 0 < seconds < 3600:
        raise UsageError(f"bench: --seconds is {seconds:g}, expected more than 0 and less than 3600")
    available = len(topology.read().cores)
    if not 0 <= cores <= cores_of_each(available, max(nodes)):
        raise UsageError(
            f"bench: --cores is {cores:g}, expected more than 0, "
            f"at most {cores_of_each(available, max(nodes)):g}: {available} cores for {max(nodes)} nodes"
        )
    if not 0 <= ratio < 100:
        raise UsageError(f"bench: --ratio is {ratio:g}, expected more than 0 and less than 100")
    folder = output.folder(output_folder)
    pin = parse.load().pin(pin_name)
    docker = api.ensure(say)
    image = build.build(pin, say)
    each = cores or cores_of_each(available, max(nodes))
    turns = ", ".join(map(str, nodes))
    say(
        f"{max(nodes)} containers with {each:g} of {available} physical cores each, of which {turns} train in turn"
    )
    quota = each if cores or limited(available, max(nodes)) else None
    options = (
        f"--nodes={','.join(map(str, nodes))}",
        f"--ratio={ratio or guides_ratio():.4f}",
        f"--seconds={seconds:g}",
        *([f"--backends={','.join(backends)}"] if backends else []),
    )
    spec = ClusterSpec(CLUSTER, pin.image, max(nodes), 1, ("bench", "scaling", *options), cpus=quota)
    measured = collectives.measure(spec, docker, say)
    now = datetime.now(UTC)
    facts = {
        "date": now.isoformat(timespec="seconds"),
        "image": image.id,
        "cpus": docker.cpus,
        "cores_of_each_node": each,
        "quota_period_us": CPU_PERIOD_US if quota else None,
    }
    document = scaling_report.document(measured, facts)
    path = output.stem(folder, "scaling", now)
    output.publish(document, path, scaling_report.table, plots.scaling, as_json, say)


def cores_of_each(cores: int, nodes: int) -> float:
    """The cores of each node, the same for all: physical cores, or with fewer cores than nodes a share of one."""
    return float(cores // nodes) if cores >= nodes else 1 / -(-nodes // cores)


def limited(cores: int, nodes: int) -> bool:
    """Whether equal parts need a quota: nodes share cores, or the cores cannot be divided by the nodes."""
    return cores < nodes or cores % nodes > 0


def guides_ratio() -> float:
    """The predicted ratio of communication to computing in the longest published job, on two nodes."""
    longest = next(job for job in published.JOBS if job.name.startswith("QQP"))
    predicted = step.predict(longest.job(), 2, longest.inputs()).step
    return predicted.communication / predicted.computing
