"""A job on three hosts, for the tests of tooling.hosts."""

import tempfile
from pathlib import Path
from typing import Any

from cpu_train_stack.placement.hostfile import HostfileEntry
from tests.unit.tooling.image.examples import LOCK
from tooling.hosts.job import Job
from tooling.image import lock

HOSTS = (HostfileEntry("alpha"), HostfileEntry("beta", user="me"), HostfileEntry("gamma"))


def job(locked: bool = False, **options: Any) -> Job:
    with tempfile.TemporaryDirectory() as folder:
        hosts, image_lock = Path(folder) / "hosts", Path(folder) / "image.lock.json"
        hosts.write_text("alpha\nme@beta\ngamma\n")
        lock.write(LOCK, image_lock)
        options = {"name": "one", "ranks_per_node": 2, "command": ("train", "--x", "a b"), **options}
        return Job(hosts=str(hosts), image_lock=str(image_lock) if locked else None, **options)
