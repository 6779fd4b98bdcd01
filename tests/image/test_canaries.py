"""Each adaptation is needed by the image's releases, and a canary notices when it is not, or when a hook moves."""

import json

from cpu_train_stack.adapt import catalogue
from tests import containers
from tooling.checks import canaries

# Releases with a removed name, without a hook of an adaptation, and too old for an adaptation.
CHANGED = """\
import runpy, sys
import accelerate.data_loader, transformers.utils
from cpu_train_stack.adapt import catalogue
transformers.utils.send_example_telemetry = print
del accelerate.data_loader.concatenate
versions = {**catalogue.versions(), "accelerate": "0.30.1"}
catalogue.versions = lambda: versions
sys.argv = ["main.py", "telemetry", "offline-mode", "ragged-batches", "accelerator-names"]
sys.path.insert(0, "/canaries")
runpy.run_path("/canaries/main.py", run_name="__main__")
"""


def test_every_adaptation_is_needed_with_the_images_releases(image: str) -> None:
    rows = canaries.sing(image)["rows"]
    assert {row["name"]: row["detail"] for row in rows if row["result"] in canaries.ADVICE} == {}
    assert {one.name for one in catalogue.ALL} < {row["name"] for row in rows}


def test_a_canary_notices_a_release_without_the_fault_and_one_without_the_hook(image: str) -> None:
    mounts = ["--network=none", f"--volume={canaries.SCRIPTS}:/canaries:ro"]
    done = containers.run(image, "python", "-c", CHANGED, docker_args=mounts)
    found = {row["name"]: row["result"] for row in json.loads(containers.works(done))["rows"]}
    assert found == {
        "offline-mode": "needed",
        "telemetry": "no longer needed: remove",
        "ragged-batches": "hook moved: broken",
        "accelerator-names": "not in this release",
    }
