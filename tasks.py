"""The tasks of ./inv and of plain invoke, by section, in the order in which a user needs them."""

import itertools
import os
import sys

from invoke.collection import Collection
from invoke.exceptions import Exit

_FIX = "run the task with ./inv, or with .venv/bin/invoke, which ./inv creates"
_VERSION = ".".join(map(str, sys.version_info[:2]))
if sys.version_info < (3, 11):  # noqa: UP036 - the invoke that reads this file may belong to an older Python
    raise Exit(f"tasks.py: found Python {_VERSION}, expected 3.11 or newer: {_FIX}", code=2)
try:
    from tooling.cli import (
        tasks_bench,
        tasks_clusters,
        tasks_dev,
        tasks_images,
        tasks_machine,
        tasks_manifests,
    )
except ImportError as error:
    if (error.name or "").startswith(("cpu_train_stack.", "tooling")) or "INV_CWD" in os.environ:
        raise  # ./inv has a line of its own
    raise Exit(f"tasks.py: this Python cannot import {error.name}: {_FIX}", code=2) from None

BENCH = Collection.from_module(tasks_bench, name="bench")
DEV = Collection.from_module(tasks_dev, name="dev")
MANIFEST = Collection.from_module(tasks_manifests, name="manifest")

SECTIONS = {
    "Start": [tasks_machine.doctor, tasks_clusters.demo, tasks_images.matrix],
    "Build and push": [
        tasks_images.build,
        tasks_images.push,
        tasks_images.verify,
        tasks_images.export,
        tasks_images.sbom,
        tasks_images.advisories,
    ],
    "Local clusters": [
        tasks_clusters.up,
        tasks_clusters.logs,
        tasks_clusters.watch,
        tasks_clusters.status,
        tasks_clusters.stop,
        tasks_clusters.down,
    ],
    "Real clusters": [tasks_clusters.plan_cluster, tasks_clusters.launch, MANIFEST],
    "Measure": [BENCH, tasks_machine.compare],
    "Develop": [tasks_machine.run_suite, DEV],
}
namespace = Collection(*itertools.chain(*SECTIONS.values()))
