"""Which image a command runs: the image of a pin, or an image that ./inv push pushed."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated

from tooling.basis.errors import UsageError
from tooling.engine import api
from tooling.engine.api import Engine
from tooling.image import build, recipe, sign
from tooling.image import lock as image_lock
from tooling.image.build import Image
from tooling.image.lock import ImageLock
from tooling.image.sign import KeyOption
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
WithOption = Annotated[
    tuple[str, ...],
    "add your own package: trl==1.16.0, ./requirements.txt, a wheel or a folder of wheels; may be repeated",
]
TorchSourceOption = Annotated[str, TORCH_SOURCE_HELP]
ImageLockOption = Annotated[
    str | None, "use the image in this image.lock.json of ./inv push, by digest, instead of building one"
]


@dataclass(frozen=True)
class Choice:
    """The options that name an image."""

    pin: PinOption = None
    set: SetOption = ()
    with_: WithOption = ()
    torch_source: TorchSourceOption = TorchSource.ROW
    image_lock: ImageLockOption = None
    key: KeyOption = ""

    def __post_init__(self) -> None:
        if self.image_lock and (self.pin or self.set or self.with_ or self.torch_source != TorchSource.ROW):
            raise UsageError(
                "--image-lock names the image: do not combine it with --pin, --set, --with or --torch-source"
            )
        if self.key and not self.image_lock:
            raise UsageError(
                "found --key without --image-lock: only pushed images are signed, so add --image-lock with the "
                "file that ./inv push --sign wrote"
            )

    @cached_property
    def source(self) -> Pin | ImageLock:
        """The pin to build, or the lock of the image to pull."""
        if self.image_lock:
            return image_lock.read(Path(self.image_lock))
        return choose.choose(self.pin, self.set, self.torch_source, self.with_)

    @property
    def row(self) -> Pin | None:
        """The pin, or None if an image lock names the image."""
        return self.source if isinstance(self.source, Pin) else None

    @property
    def reference(self) -> str:
        """The name of the image in the engine."""
        return self.source.image

    @property
    def backend(self) -> str:
        """The default process group of the image: ccl, or gloo for an image without ccl."""
        ccl = self.source.ccl if isinstance(self.source, Pin) else self.source.labels.get(recipe.CCL_LABEL)
        return "gloo" if ccl == Ccl.NONE else "ccl"

    def verify(self) -> None:
        """Check the image's signature if there is a key. Raises UsageError."""
        sign.verify_with(self.key, self.reference)

    def ensure(self) -> tuple[Engine, Image]:
        """An engine and the image in it: built if it is not up to date, or pulled if an image lock names it."""
        source = self.source  # first: a mistake in the options is reported before Docker is set up
        self.verify()
        engine = api.ensure()
        if isinstance(source, Pin):
            return engine, build.build(source)
        return engine, image_lock.fetch(source, engine)
