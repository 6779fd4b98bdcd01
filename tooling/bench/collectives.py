"""`./inv bench collectives`: measures the process group within a container and between containers."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from invoke.exceptions import Exit

from tooling.basis.errors import UsageError
from tooling.basis.say import Say
from tooling.bench import collectives_report, output, plots
from tooling.cluster import run
from tooling.cluster.compose import ClusterSpec, Mount
from tooling.engine import api
from tooling.engine.api import Engine
from tooling.image import build
from tooling.pins import parse

CLUSTER = "bench"
# The collective in the picture: DDP calls it in every step. The table has all collectives.
PLOTTED = "all_reduce"


def collectives(
    pin_name: str | None,
    nodes: int,
    ranks: int,
    options: Sequence[str],
    output_folder: str | None,
    as_json: bool,
    say: Say,
) -> None:
    """Measure `ranks` ranks in one container, then `nodes` containers with one rank each.

    `options` are arguments of the image's `bench`. Write collectives-TIME.json and .png to the output folder, and
    prints a table or, with `as_json`, the document. Raises Exit with the cluster's exit code if a measurement
    fails.
    """
    if nodes < 1:
        raise UsageError(f"bench: --nodes is {nodes}, expected 2 or more, or 1 to measure one container only")
    if ranks < 2:
        raise UsageError(f"bench: --ranks is {ranks}, expected 2 or more: a single rank has no peer")
    folder = output.folder(output_folder)
    pin = parse.load().pin(pin_name)
    docker = api.ensure(say)
    image = build.build(pin, say)
    documents = []
    for node_count, ranks_per_node in ((1, ranks), *([(nodes, 1)] if nodes > 1 else [])):
        say(f"measuring: containers: {node_count}, ranks in each: {ranks_per_node}")
        spec = ClusterSpec(CLUSTER, pin.image, node_count, ranks_per_node, ("bench", "collectives", *options))
        documents.append(measure(spec, docker, say))
    now = datetime.now(UTC)
    facts = {"date": now.isoformat(timespec="seconds"), "image": image.id, "cpus": docker.cpus}
    document = collectives_report.merge(documents, facts)
    has_picture = any(row["collective"] == PLOTTED for row in document["rows"])
    draw = partial(plots.collectives, collective=PLOTTED) if has_picture else None
    output.publish(document, output.stem(folder, "collectives", now), collectives_report.table, draw, as_json, say)


def options_of(sizes: str | None, seconds: float) -> list[str]:
    """The arguments of the image's `bench`."""
    return [f"--seconds={seconds:g}", *([f"--sizes={sizes}"] if sizes is not None else [])]


def measure(spec: ClusterSpec, docker: Engine, say: Say) -> dict[str, Any]:
    """Run a cluster whose command is the image's `bench`, and return the document that rank 0 wrote.

    Raises Exit with the cluster's exit code if it fails.
    """
    shared = run.writable_folder(run.folder_of(spec.name) / "output")
    result = shared / "result.json"
    result.unlink(missing_ok=True)
    measured = replace(
        spec,
        command=(*spec.command, f"--output=/output/{result.name}"),
        mounts=(Mount(shared, "/output", read_only=False),),
        offline=True,
    )
    outcome = run.run(measured, docker, say, shown=sys.stderr.buffer)
    if outcome.exit_code != 0:
        raise Exit(f"bench failed: the cluster ended with exit code {outcome.exit_code}", code=outcome.exit_code)
    document: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    return document
