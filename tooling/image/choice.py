"""Which image a command runs: a pin's, built if it is not up to date, or one that was pushed, by its lock."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tooling.basis.errors import UsageError
from tooling.basis.say import Say
from tooling.engine.api import Engine
from tooling.image import build, recipe
from tooling.image import lock as image_lock
from tooling.image.build import Image
from tooling.pins import choose
from tooling.pins.pin import Ccl, Pin, TorchSource


@dataclass(frozen=True)
class Choice:
    """The options --pin, --set (PACKAGE=VERSION words), --torch-source and --image-lock as they were typed."""

    pin: str | None = None
    assignments: tuple[str, ...] = ()
    torch_source: str = TorchSource.ROW
    image_lock: str | None = None

    def __post_init__(self) -> None:
        if self.image_lock and (self.pin or self.assignments or self.torch_source != TorchSource.ROW):
            raise UsageError("--image-lock names the image: do not combine it with --pin, --set or --torch-source")

    @property
    def row(self) -> Pin | None:
        """The pin; None if an image lock names the image."""
        return None if self.image_lock else choose.choose(self.pin, self.assignments, self.torch_source)

    @property
    def reference(self) -> str:
        """What the engine knows the image by."""
        row = self.row
        return row.image if row else image_lock.read(Path(str(self.image_lock))).image

    @property
    def backend(self) -> str:
        """The default process group of the image: ccl, or gloo for an image without ccl."""
        row = self.row
        ccl = row.ccl if row else image_lock.read(Path(str(self.image_lock))).labels.get(recipe.CCL_LABEL)
        return "gloo" if ccl == Ccl.NONE else "ccl"

    @property
    def typed(self) -> str:
        """The options that are not the default, for a command that repeats them."""
        words = [f"--pin {self.pin}"] if self.pin else []
        words += [f"--set {assignment}" for assignment in self.assignments]
        words += [f"--torch-source {self.torch_source}"] if self.torch_source != TorchSource.ROW else []
        words += [f"--image-lock {self.image_lock}"] if self.image_lock else []
        return "".join(f" {word}" for word in words)


def image(choice: Choice, engine: Engine, say: Say) -> Image:
    """The chosen image, present in the engine. Raises UsageError with one line where it cannot be had."""
    pin = choice.row
    if pin is None:
        return image_lock.fetch(image_lock.read(Path(str(choice.image_lock))), engine, say)
    return build.build(pin, say)
