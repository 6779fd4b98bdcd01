"""The command `train`: parse and check the flags, then run one rank once the process group exists."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

from cpu_train_stack import contract
from cpu_train_stack.cli import packages
from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.options import default_backend
from cpu_train_stack.cli.say import show
from cpu_train_stack.group.banner import Announce
from cpu_train_stack.placement.detect import DistributedEnvironment
from cpu_train_stack.train.flags import help as help_text
from cpu_train_stack.train.flags.arguments import Parsed, parse
from cpu_train_stack.train.loop import console
from cpu_train_stack.train.model import quantization

PRINT_CONFIG = "--print-config"
# Trainer imports datasets, and with it pandas, to recognize `datasets.Dataset`; losses for object detection import
# scipy. `train` imports them only when it needs them: for data sets of the hub, and for scores.
_LATER = ("datasets", "scipy")


@dataclass(frozen=True)
class Prepared:
    """A checked command line, and `train.run.run`. `timeout_seconds`: of the process group."""

    parsed: Parsed
    start: Callable[[Parsed, DistributedEnvironment, Announce], int]

    @property
    def backend(self) -> str:
        return self.parsed.task.backend or default_backend()

    @property
    def timeout_seconds(self) -> float:
        return float(self.parsed.training["ddp_timeout"])

    def run(self, environment: DistributedEnvironment, announce: Announce, /) -> int:
        """Train and evaluate. The process group must exist. Returns the exit code; raises UsageError."""
        return self.start(self.parsed, environment, announce)


def prepare(argv: list[str]) -> Prepared:
    """Parse and check the flags. Raises UsageError. Prints and exits with 0 for --help and --print-config."""
    check_release(packages.versions(["transformers"]).get("transformers"))
    quantization.silence()  # before transformers, which imports bitsandbytes, is imported
    with hidden(_LATER if imports_on_demand(packages.versions(["transformers"]).get("transformers")) else ()):
        from cpu_train_stack.train.tasks.registry import TASKS  # imports torch and transformers: seconds

        if "--help" in argv or "-h" in argv:
            show(help_text.render("all" in argv, TASKS))
            raise SystemExit(0)
        if PRINT_CONFIG in argv:
            parsed = parse([word for word in argv if word != PRINT_CONFIG], TASKS, check=False)
            if os.environ.get("RANK", "0") == "0":
                show(help_text.config(parsed, TASKS))
                console.notes(parsed.cleaned.notes)
            raise SystemExit(0)
        parsed = parse(argv, TASKS)
        from cpu_train_stack.train import run
    from accelerate import data_loader

    # With several ranks, accelerate imports datasets to recognize its classes, which `train` does not use.
    data_loader.is_datasets_available = lambda: False

    return Prepared(parsed, run.run)


def imports_on_demand(version: str | None) -> bool:
    """Whether this release of transformers imports scipy only if it is found. Releases before 5 import it anyway.

    False, too, if transformers is imported already: it may have found the packages.
    """
    return "transformers" not in sys.modules and packages.release(version) >= packages.release("5.0.0")


@contextmanager
def hidden(names: tuple[str, ...]) -> Iterator[None]:
    """Inside the block, these packages cannot be imported, except those that are imported already."""
    modules = cast("dict[str, Any]", sys.modules)
    absent = [name for name in names if name not in modules]
    modules.update(dict.fromkeys(absent))  # Python refuses to import a module whose entry is None
    try:
        yield
    finally:
        for name in absent:
            modules.pop(name, None)


def check_release(version: str | None) -> None:
    """Raise UsageError if the image's transformers (`version`) is older than this trainer supports."""
    if version and packages.release(version) < packages.release(contract.OLDEST_TRANSFORMERS):
        raise UsageError(
            f"train needs transformers {contract.OLDEST_TRANSFORMERS} or newer, this image has {version}: use a "
            "newer pin, or run the example script of that release with `run`"
        )
