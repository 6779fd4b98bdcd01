"""Names that example scripts of transformers 4 import or pass, and that transformers 5 has no more.

send_example_telemetry, which told Hugging Face that an example was run, was taken out of transformers 5.
Trainer's `tokenizer` has been called processing_class since 4.46; 5.0 takes only the new name.
"""

from __future__ import annotations

import functools
import inspect
from types import ModuleType
from typing import Any

from entrypoints.adapt.adaptation import Adaptation, Situation, Verdict
from entrypoints.cli.import_hooks import after_import

_TELEMETRY, _TOKENIZER = "telemetry", "trainer-tokenizer"


def _hook_utils(situation: Situation, module: ModuleType) -> None:
    if hasattr(module, "send_example_telemetry"):
        return

    def send_example_telemetry(*args: Any, **options: Any) -> None:  # noqa: ARG001 - nothing is sent
        situation.say(_TELEMETRY, "send_example_telemetry is gone from transformers: nothing is sent")

    module.send_example_telemetry = send_example_telemetry  # type: ignore[attr-defined]


def _hook_trainer(situation: Situation, module: ModuleType) -> None:
    init = module.Trainer.__init__
    names = inspect.signature(init).parameters
    if "tokenizer" in names or "processing_class" not in names:
        return

    @functools.wraps(init)
    def __init__(self: Any, *args: Any, **options: Any) -> None:  # noqa: N807 - it is one
        if "tokenizer" in options and "processing_class" not in options:
            options["processing_class"] = options.pop("tokenizer")
            situation.say(_TOKENIZER, "Trainer(tokenizer=...) is Trainer(processing_class=...) now")
        init(self, *args, **options)

    module.Trainer.__init__ = __init__


def _look(situation: Situation) -> Verdict:
    if situation.since("transformers", "5.0.0"):
        return Verdict(True, "where the script has it")
    return Verdict(False, "transformers before 5.0 has it")


ADAPTATIONS = (
    Adaptation(
        _TELEMETRY,
        "transformers.utils.send_example_telemetry is there again, and sends nothing",
        _look,
        lambda situation: after_import("transformers.utils", functools.partial(_hook_utils, situation)),
    ),
    Adaptation(
        _TOKENIZER,
        "Trainer(tokenizer=...) is handed on as processing_class",
        _look,
        lambda situation: after_import("transformers.trainer", functools.partial(_hook_trainer, situation)),
    ),
)
