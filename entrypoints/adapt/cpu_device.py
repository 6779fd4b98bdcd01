"""A rank's device is `cpu`, as its tensors have it, where IPEX may have packed them.

Since 0.29 accelerate calls the device of a rank in a group `cpu:N`, which torch takes for another one than `cpu`:
the `model.to(device)` of Trainer and of `Accelerator.prepare` copies every weight. IPEX's layers go on computing
with the memory that their weights were packed into, and the optimizer changes the copies: the model does not
learn, and nothing says so. accelerate packs by itself on torch before 2.7, whether a script asks for it or not.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any, Callable

from entrypoints.adapt.adaptation import Adaptation, Situation, Verdict
from entrypoints.cli import packages
from entrypoints.cli.import_hooks import after_import

_NAME = "cpu-device"
_LINE = "the ranks' device is cpu, not {device}: IPEX's layers keep the weights that they are trained on"
MODULE = "accelerate.state"

Say = Callable[[str], None]


def without_index(module: ModuleType, say: Say | None = None) -> None:
    """Makes the PartialState of `module`, which is accelerate.state, leave the CPU's index out."""
    state = module.PartialState
    init = state.__init__

    @functools.wraps(init)
    def __init__(self: Any, *args: Any, **options: Any) -> None:  # noqa: N807 - it is one
        init(self, *args, **options)
        device = self.device
        if device is not None and device.type == "cpu" and device.index is not None:
            self.device = type(device)("cpu")
            if say is not None:
                say(_LINE.format(device=device))

    state.__init__ = __init__


def _look(situation: Situation) -> Verdict:
    if packages.IPEX not in situation.versions:
        return Verdict(False, "IPEX is not installed")
    if situation.before("accelerate", "0.29.0"):
        return Verdict(False, "accelerate calls it cpu before 0.29")
    return Verdict(True, "where accelerate calls a rank's device cpu:0")


def _install(situation: Situation) -> None:
    if _look(situation).applies:
        say = functools.partial(situation.say, _NAME)
        after_import(MODULE, functools.partial(without_index, say=say))


ADAPTATIONS = (
    Adaptation(
        _NAME,
        "accelerate's device of a rank is cpu and not cpu:0: layers that IPEX packed would not learn",
        _look,
        _install,
    ),
)
