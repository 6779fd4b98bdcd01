"""What the status of a TrainJob says at the end of a training."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from cpu_train_stack.adapt.adaptation import Situation
from cpu_train_stack.speed import progress


class LikeKubeflows:
    """As transformers' KubeflowCallback."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []

    def _update_status(self, force: bool = False, **status: Any) -> bool:
        self.sent.append({**status, "force": force})
        return True

    def on_train_end(self, _args: Any, _state: Any, _control: Any, **_: Any) -> None:
        self._update_status(progress_percent=100, estimated_time_remaining=0, metrics={"loss": 1.0}, force=True)


@pytest.mark.parametrize(
    ("step", "percent", "remaining"),
    [(30, 100, 0), (29, 96, None), (0, 0, None)],
    ids=["finished", "stopped", "at once"],
)
def test_a_training_that_was_stopped_is_not_reported_as_finished(
    step: int, percent: int, remaining: int | None
) -> None:
    kind = type("Kind", (LikeKubeflows,), dict(vars(LikeKubeflows)))
    progress.hook(cast(Situation, None), SimpleNamespace(KubeflowCallback=kind))
    callback = kind()
    callback.on_train_end(None, SimpleNamespace(global_step=step, max_steps=30), None)
    (sent,) = callback.sent
    assert (sent["progress_percent"], sent["estimated_time_remaining"]) == (percent, remaining)
    assert (sent["metrics"], sent["force"]) == ({"loss": 1.0}, True)
