"""The tasks of ./inv: a namespace only. They are declared in tooling/command_line, the work is beside it."""

from __future__ import annotations

from invoke.collection import Collection

from tooling.command_line import clusters, images, machine, manifests, measurements

namespace = Collection()
for module in (images, clusters, manifests, measurements, machine):
    for task in Collection.from_module(module).tasks.values():
        namespace.add_task(task)
