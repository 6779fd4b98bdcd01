"""Arguments arrive byte for byte under every launcher, and a job that nohup starts survives SIGHUP."""

from tests import containers
from tests.containers import RunInImage
from tooling.basis.paths import ROOT


def test_arguments_and_ignored_signals_reach_the_ranks_unchanged(run_in_image: RunInImage) -> None:
    """One container: each job of two ranks takes several seconds. A case that fails is in the output."""
    scripts = f"--volume={ROOT}/tests/image/scripts:/scripts:ro"
    done = run_in_image("python", "/scripts/arguments.py", docker_args=[scripts, "--shm-size=1g"])
    assert containers.works(done).count(": ok\n") == 9
