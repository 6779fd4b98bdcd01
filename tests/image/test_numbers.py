"""Flags of `train` that mean nothing, many in one process of the image."""

from tests import containers, fuzzing
from tests.containers import RunInImage
from tooling.basis.paths import ROOT


def test_every_numeric_flag_of_train_refuses_what_means_nothing_in_one_line(run_in_image: RunInImage) -> None:
    volume = f"--volume={ROOT}/tests/image/scripts:/scripts:ro"
    done = run_in_image("python", "/scripts/numeric_flags.py", docker_args=[volume])
    assert " values of " in containers.works(done)


def test_no_flags_or_config_files_of_train_end_in_a_traceback_or_take_long(run_in_image: RunInImage) -> None:
    volumes = (f"--volume={ROOT}/tests:/fuzz/tests:ro", "--env=PYTHONPATH=/fuzz")
    count = len(fuzzing.cases(60))
    done = run_in_image("python", "/fuzz/tests/image/scripts/fuzz_train.py", str(count), docker_args=volumes)
    assert f"{count} cases, 0 failed" in containers.works(done)
