"""Which image a command runs: the image of a pin, an image that ./inv push pushed, or a given one."""

from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated

from cpu_train_stack.cli.errors import UsageError, check_all
from tooling.engine import api
from tooling.engine.api import Engine, EngineOption
from tooling.image import build, given, sign
from tooling.image import lock as image_lock
from tooling.image.build import Image
from tooling.image.given import ImageOption
from tooling.image.lock import ImageLock
from tooling.image.sign import KeyOption
from tooling.pins.pin import Pin
from tooling.wheels import locks

TORCH_SOURCES = (
    "which build of torch: row (the CPU build that the row names), or default (the build of pip's default index: "
    "CUDA, larger by gigabytes)"
)
TORCH_SOURCE_HELP = f"{TORCH_SOURCES}; default: row if images/locks has its lock"
PinOption = Annotated[str | None, "a row of ./inv matrix; default: its first row"]
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
    """The options that name an image and the engine that has it. Raises UsageError, one line with all mistakes."""

    pin: PinOption = None
    set: SetOption = ()
    with_: WithOption = ()
    torch_source: TorchSourceOption = ""
    image_lock: ImageLockOption = None
    key: KeyOption = None
    image: ImageOption = None
    engine: EngineOption = None

    def __post_init__(self) -> None:
        check_all([self._check_image, self._check_key, partial(api.check, self.engine)])

    def _check_image(self) -> None:
        for flag, value, kind in (
            ("--image-lock", self.image_lock, "a file of ./inv push"),
            ("--image", self.image, "an image"),
        ):
            if value == "":  # an unset variable in --image-lock "$LOCK"
                raise UsageError(f"{flag} is empty, expected {kind}: leave it out to use the image of a pin")
        own = self.pin or self.set or self.with_ or self.torch_source
        if (self.image_lock and (own or self.image)) or (self.image and own):
            raise UsageError(
                f"{'--image-lock' if self.image_lock else '--image'} names the image: do not combine it with "
                f"--pin, --set, --with{', --image' if self.image_lock else ''} or --torch-source"
            )

    def _check_key(self) -> None:
        if self.key is not None and not self.image_lock:
            raise UsageError(
                "found --key without --image-lock: only pushed images are signed, so add --image-lock with the "
                "file that ./inv push --sign wrote"
            )

    @cached_property
    def source(self) -> Pin | ImageLock:
        """The pin to build, or the lock of the image to pull."""
        if self.image_lock:
            return image_lock.read(Path(self.image_lock))
        return locks.choose_pin(self.pin, self.set, self.torch_source, self.with_)

    @property
    def row(self) -> Pin | None:
        """The pin, or None if an image lock or --image names the image."""
        return None if self.image or not isinstance(self.source, Pin) else self.source

    @property
    def reference(self) -> str:
        """The name of the image in the engine."""
        return given.name(self.image) if self.image else self.source.image

    def verify(self) -> None:
        """Check the image's signature if there is a key. Raises UsageError."""
        sign.verify_with(self.key, self.reference)

    def ensure(self) -> tuple[Engine, Image]:
        """The engine, and the image in it: built if it is not up to date, loaded or pulled if an option names it.

        ./inv does not build with podman.
        """
        # First, because a mistake in the options is reported before Docker is set up.
        source = self.source
        _ = self.reference
        self.verify()
        engine = api.for_cluster(self.engine)
        if self.image:
            return engine, given.fetch(self.image, engine)
        if isinstance(source, ImageLock):
            return engine, image_lock.fetch(source, engine)
        return engine, given.of_pin(source, engine) if engine.name == api.PODMAN else build.build(source)
