"""Which image a command runs: a pin's, built if it is not up to date, or one that was pushed, by its lock."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tooling.basis.errors import UsageError
from tooling.basis.say import Say
from tooling.engine.api import Engine
from tooling.image import build, recipe
from tooling.image import lock as image_lock
from tooling.image.build import Image
from tooling.pins import choose
from tooling.pins.pin import Ccl, Pin, TorchSource

TORCH_SOURCE_HELP = (
    "which build of torch: row (the CPU build that the row names), or default (the build on pip's default index: "
    "CUDA, larger by gigabytes)"
)
PinOption = Annotated[str | None, "a row of ./inv matrix, which also names the default row"]
SetOption = Annotated[
    tuple[str, ...], "PACKAGE=VERSION replaces a version of the row, such as torch=2.14.1; may be repeated"
]
TorchSourceOption = Annotated[str, TORCH_SOURCE_HELP]
ImageLockOption = Annotated[
    str | None, "an image.lock.json of ./inv push: run that image, by digest, instead of building one"
]


@dataclass(frozen=True)
class Choice:
    """The options that name an image."""

    pin: PinOption = None
    set: SetOption = ()
    torch_source: TorchSourceOption = TorchSource.ROW
    image_lock: ImageLockOption = None

    def __post_init__(self) -> None:
        if self.image_lock and (self.pin or self.set or self.torch_source != TorchSource.ROW):
            raise UsageError("--image-lock names the image: do not combine it with --pin, --set or --torch-source")

    @property
    def row(self) -> Pin | None:
        """The pin; None if an image lock names the image."""
        return None if self.image_lock else choose.choose(self.pin, self.set, self.torch_source)

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
        words += [f"--set {assignment}" for assignment in self.set]
        words += [f"--torch-source {self.torch_source}"] if self.torch_source != TorchSource.ROW else []
        words += [f"--image-lock {self.image_lock}"] if self.image_lock else []
        return "".join(f" {word}" for word in words)


def image(choice: Choice, engine: Engine, say: Say) -> Image:
    """The chosen image, present in the engine. Raises UsageError with one line where it cannot be had."""
    pin = choice.row
    if pin is None:
        return image_lock.fetch(image_lock.read(Path(str(choice.image_lock))), engine, say)
    return build.build(pin, say)
