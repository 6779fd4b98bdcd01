"""Each adaptation is needed by the image's releases, and a canary notices when it is not, or when a hook moves."""

import json

from cpu_train_stack import catalogue
from tests import containers
from tooling.checks import canaries

# Those whose fault a script meets in the library itself, not on its command line.
FAULTS = (
    *("process-group", "notebook-launcher", "use-cpu", "cpu-device", "loss-scale", "offline-metrics", "telemetry"),
    *("offline-mode", "load-metric", "auth-token", "torch-tpu", "hub-repository", "accelerator-names", "adamw"),
    *("moved-names", "encode-plus", "trainer-methods", "trainer-tokenizer", "trainer-names", "local-rank"),
    *("ddp-backend", "optim", "report-to", "progress"),
)
# With the adaptations, without a function that one hooks, and with a release that is too old for another one.
ADAPTED = """\
import runpy, sys
from cpu_train_stack import catalogue
from cpu_train_stack.adapt.adaptation import Situation
versions = catalogue.versions()
catalogue.install(Situation((), versions, "gloo", world_size=2), frozenset())
import accelerate.data_loader
del accelerate.data_loader.concatenate
catalogue.versions = lambda: {**versions, "accelerate": "1.12.0"}
sys.path.insert(0, "/canaries")
runpy.run_path("/canaries/main.py", run_name="__main__")
"""


def test_every_adaptation_is_needed_with_the_images_releases(image: str) -> None:
    rows = canaries.sing(image)["rows"]
    assert {row["name"]: row["detail"] for row in rows if row["result"] in canaries.ADVICE} == {}
    assert {one.name for one in catalogue.ALL} < {row["name"] for row in rows}


def test_a_canary_notices_that_the_fault_is_gone_or_that_a_hook_is_missing(image: str) -> None:
    mounts = ["--network=none", f"--volume={canaries.SCRIPTS}:/canaries:ro", "--env=HF_HUB_OFFLINE=1"]
    argv = ("python", "-c", ADAPTED, *FAULTS, "ragged-batches", "accelerate-cpu")
    done = containers.run(image, *argv, docker_args=mounts)
    found = {row["name"]: row["result"] for row in json.loads(containers.works(done))["rows"]}
    assert found == {
        **dict.fromkeys(FAULTS, "no longer needed: remove"),
        "ragged-batches": "hook moved: broken",
        "accelerate-cpu": "not in this release",
    }
