"""The tasks of ./inv: a namespace only. They are declared in tooling/command_line, the work is beside it."""

from __future__ import annotations

from invoke.collection import Collection

from tooling.cli import tasks_clusters, tasks_images, tasks_machine, tasks_manifests, tasks_measurements

namespace = Collection()
for module in (tasks_images, tasks_clusters, tasks_manifests, tasks_measurements, tasks_machine):
    for task in Collection.from_module(module).tasks.values():
        namespace.add_task(task)
