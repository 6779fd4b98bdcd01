"""Numeric flags of `train` with numbers that mean nothing, all in one process of the image."""

from tests import containers
from tests.containers import RunInImage
from tooling.basis.paths import ROOT


def test_every_numeric_flag_of_train_refuses_what_means_nothing_in_one_line(run_in_image: RunInImage) -> None:
    volume = f"--volume={ROOT}/tests/image/scripts:/scripts:ro"
    done = run_in_image("python", "/scripts/numeric_flags.py", docker_args=[volume])
    assert " values of " in containers.works(done)
