"""`./inv bench scaling`: one step on 1, 2 and 4 containers of equal cores, beside what 1 and 2 predict for 4."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime

from rich.console import Console

from entrypoints.machine import topology
from tooling.basis.errors import UsageError
from tooling.basis.say import Say
from tooling.bench import collectives, plots_scaling, scaling_report
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
    output: str | None,
    as_json: bool,
    say: Say,
) -> None:
    """Measures all numbers of `nodes` in turn in one cluster of the largest.

    Its nodes have `cores` each or, with 0, equal parts of the machine. `ratio`: of communication to computing, by
    which the batch is chosen; 0 for that of the guides.

    Writes scaling-TIME.json and .png into `output`, prints a table or, with `as_json`, the document. Raises Exit
    with the cluster's code if a measurement failed.
    """
    if not nodes or min(nodes) < 1 or 1 not in nodes:
        raise UsageError(f"bench: --nodes is {','.join(map(str, nodes))}, expected 1 and others: 1,2,4")
    if not 0 < seconds < 3600:
        raise UsageError(f"bench: --seconds is {seconds:g}, expected more than 0 and less than 3600")
    own = len(topology.read().cores)
    if not 0 <= cores <= cores_of_each(own, max(nodes)):
        raise UsageError(
            f"bench: --cores is {cores:g}, expected more than 0, at most {cores_of_each(own, max(nodes)):g}: "
            f"this machine has {own} for {max(nodes)} nodes"
        )
    if not 0 <= ratio < 100:
        raise UsageError(f"bench: --ratio is {ratio:g}, expected more than 0 and less than 100")
    folder = collectives.output_folder(output)
    pin = parse.load().pin(pin_name)
    docker = api.ensure(say)
    image = build.build(pin, say)
    each = cores or cores_of_each(own, max(nodes))
    turns = ", ".join(map(str, nodes))
    say(f"{max(nodes)} containers with {each:g} of {own} physical cores each, of which {turns} train in turn")
    quota = each if cores or limited(own, max(nodes)) else None
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
    stem = folder / f"scaling-{now:%Y%m%dT%H%M%SZ}"
    text = json.dumps(document, indent=2) + "\n"
    stem.with_suffix(".json").write_text(text, encoding="utf-8")
    plots_scaling.scaling(document, stem.with_suffix(".png"))
    if as_json:
        sys.stdout.write(text)
    else:
        Console().print(scaling_report.table(document))
    say(f"wrote {stem}.json and .png")


def cores_of_each(cores: int, nodes: int) -> float:
    """The same for each node: whole physical cores, or with too few of them what the fullest one can give."""
    return float(cores // nodes) if cores >= nodes else 1 / -(-nodes // cores)


def limited(cores: int, nodes: int) -> bool:
    """Whether equal cores need a quota: nodes share cores, or some would have one more than others."""
    return cores < nodes or cores % nodes > 0


def guides_ratio() -> float:
    """Communication to computing in a step of the longest published job on two nodes, as the model has it."""
    one = next(job for job in published.JOBS if job.name.startswith("QQP"))
    found = step.predict(one.job(), 2, one.inputs()).step
    return found.communication / found.computing
