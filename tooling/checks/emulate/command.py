"""`./inv dev emulate`: builds the emulated machine and a disk of the image, and runs a command there."""

from pathlib import Path

from invoke.exceptions import Exit

from tooling.basis.errors import UsageError
from tooling.basis.say import say
from tooling.checks.emulate import bochs, guest
from tooling.engine import api, docker
from tooling.image import base, build
from tooling.pins import parse


def run(
    bochs_folder: str | None, pin_name: str | None, data: str | None, command: tuple[str, ...]
) -> None:
    """Print the command's output. Raises Exit with the command's exit code if that is not 0."""
    checkout = bochs.checkout(bochs_folder)
    folder = Path(data).expanduser().resolve() if data is not None else None
    if folder and not folder.is_dir():
        raise UsageError(f"--data {data} is not a folder")
    pin = parse.load().pin(pin_name)
    api.ensure()
    image = build.build(pin)
    emulator = bochs.ensure(checkout, base.ensure(pin))
    disk = guest.disk(image.tag, emulator)
    say("booting: about half a minute; importing torch takes one or two minutes")
    code = guest.run(docker.read_image(image.tag).configuration, disk, emulator, folder, command)
    if code != 0:
        raise Exit(code=code)
