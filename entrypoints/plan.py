"""`plan [--json]`: what a rank started here and now would get, without starting it. Torch-free."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

from entrypoints import affinity, environment, preload, topology
from entrypoints.options import Parser


def make(environ: Mapping[str, str]) -> affinity.RankPlan:
    """The plan for this process's environment and host. Raises UsageError."""
    return affinity.plan(environment.detect(environ), topology.read(), environ, preload.find(environ))


def main(argv: list[str]) -> int:
    parser = Parser("plan", "What a rank that is started here and now would get, and why.")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of a table")
    options = parser.parse_args(argv)
    made = make(os.environ)
    print(json.dumps(made.document(), indent=2) if options.json else table(made))
    return 0


def table(made: affinity.RankPlan) -> str:
    place = made.placement
    rows = [
        ("rank", f"{place.rank} of {place.world_size}"),
        ("local rank", f"{place.local_rank} of {place.local_world_size} on node {place.node_rank}"),
        ("launcher", place.launcher),
        ("cores", " ".join(map(str, made.cores))),
        ("threads", str(made.omp_num_threads)),
        *(("variable", f"{name}={value}") for name, value in made.environment.items()),
        *(("preload", path) for path in made.preload),
        *(("because", reason) for reason in made.reasons),
        *(("warning", warning) for warning in made.warnings),
    ]
    return "\n".join(f"{name:<10}  {value}" for name, value in rows)
