"""A run that resumes in any epoch has the rows of the uninterrupted run, on two ranks."""

import pytest

from tests.containers import RunInImage
from tests.image.container_scripts import MOUNT
from tests.image.train_runs import ONE_THREAD


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("--backend=ccl /s/resumed_rows.py", ["of a script"]),
        ("--backend=gloo --no-adapt=all /s/resumed_rows.py train", ["shuffled", "grouped"]),
    ],
)
def test_a_run_resumed_within_an_epoch_has_the_rows_of_the_uninterrupted_run(
    run_in_image: RunInImage, words: str, names: list[str]
) -> None:
    command = ("launch", "--nproc-per-node=2", "--", "run", *words.split())
    done = run_in_image(*command, env=ONE_THREAD, docker_args=MOUNT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        line
        for name in names
        for line in (
            f"{name}: every row once True",
            *(f"{name}, from step {step}: same rows" for step in (3, 8, 10, 13)),
            f"{name}, in smaller batches: same steps",
        )
    ]
    assert done.stderr.count("some rows are trained again or left out") == ("shuffled" in names)
