"""The verdicts of ./inv dev faults, and the losses on which they depend."""

from typing import Any

import pytest

from cpu_train_stack.cli.errors import UsageError
from tooling.checks.faults import reliability
from tooling.checks.faults.faults import FAULTS
from tooling.checks.faults.reliability import Recovery, Result
from tooling.checks.faults.trial import Trial


def trial(**changes: Any) -> Trial:
    values: dict[str, Any] = {
        "fault": "rank-killed",
        "launcher": "mpirun",
        "detected_seconds": 1.0,
        "ended_seconds": 2.0,
        "exit_code": 137,
        "left": (),
        "output": "",
    }
    return Trial(**{**values, **changes})


RECOVERY = Recovery(steps_lost=4, loss_apart=0.001)


@pytest.mark.parametrize(
    ("changes", "recovery", "problem"),
    [
        ({}, RECOVERY, None),
        ({"exit_code": 0}, RECOVERY, "exit code 0"),
        ({"detected_seconds": None}, RECOVERY, "its cause was not reported"),
        ({"ended_seconds": reliability.TIMEOUT_SECONDS + 31.0}, RECOVERY, "too late"),
        ({"left": ("network x",)}, RECOVERY, "leftovers"),
        ({}, None, "no recovery"),
        ({}, Recovery(12, 0.001), "recovery lost 12 steps"),
        ({}, Recovery(4, 0.02), "different losses after the recovery"),
    ],
)
def test_every_problem_of_a_trial_is_reported(
    changes: dict[str, object], recovery: Recovery | None, problem: str | None
) -> None:
    found = reliability.judge(trial(**changes), FAULTS["rank-killed"], recovery)
    assert found == ((problem,) if problem else ())


def test_losses_are_read_for_each_step_and_compared() -> None:
    printed = "node-0-1  | step 1/40  loss 2.0000  lr 4.1e-05\nstep 2/40  loss 1.0000\nstep 2/40  loss 1.1000\n"
    read = reliability.losses(printed)
    assert read == {1: 2.0, 2: 1.1}
    assert reliability.largest_difference({2: 1.1}, read) == 0
    assert reliability.largest_difference({1: 2.5, 2: 1.1}, read) == 0.25
    assert (
        reliability.largest_difference({3: 1.0}, read) == reliability.largest_difference({}, read) == float("inf")
    )


@pytest.mark.parametrize("recovery", [RECOVERY, None], ids=["resumed", "lost"])
def test_a_result_is_a_row_in_the_file_and_in_the_table(recovery: Recovery | None) -> None:
    result = Result(trial(left=("network x",)), recovery, ("leftovers",))
    assert result.row() == {
        "fault": "rank-killed",
        "launcher": "mpirun",
        "detected_seconds": 1.0,
        "ended_seconds": 2.0,
        "exit_code": 137,
        "left": ("network x",),
        "steps_lost": 4 if recovery else None,
        "loss_apart": 0.001 if recovery else None,
        "problems": ("leftovers",),
    }
    cells = result.cells()
    assert len(cells) == len(reliability.COLUMNS)
    assert cells[2:5] == ["1.0", "2.0", "137"]
    assert cells[6:] == [*(["4", "0.10%"] if recovery else ["", ""]), "leftovers"]


def test_a_bad_regular_expression_is_refused() -> None:
    with pytest.raises(UsageError, match=r"--only '\[' is not a regular expression: unterminated character set"):
        reliability.run("[", "")
