"""The tasks of ./inv by section, in the order in which a user needs them."""

from invoke.collection import Collection

from tooling.cli import (
    tasks_bench,
    tasks_clusters,
    tasks_dev,
    tasks_images,
    tasks_machine,
    tasks_manifests,
)
from tooling.cli.parser import Member

BENCH = Collection.from_module(tasks_bench, name="bench")
DEV = Collection.from_module(tasks_dev, name="dev")
MANIFEST = Collection.from_module(tasks_manifests, name="manifest")

SECTIONS: dict[str, list[Member]] = {
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
