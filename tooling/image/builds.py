"""`./inv build`: one pin, a user's own combination, or every row that can be built."""

from __future__ import annotations

from collections.abc import Sequence

from invoke.exceptions import Exit

from tooling.basis.errors import UsageError
from tooling.basis.say import Say
from tooling.engine import api
from tooling.image import build
from tooling.image.build import Image
from tooling.image.choice import Choice, image
from tooling.pins import choose, parse
from tooling.pins.pin import Pin
from tooling.wheels import locks


def one(name: str | None, assignments: Sequence[str], torch_source: str, say: Say) -> None:
    """Builds one pin; a user's own combination is resolved first, once."""
    choice = Choice(name, tuple(assignments), torch_source)
    pin = choose.choose(name, assignments, torch_source)  # bad options are reported before an engine starts
    _tell(pin, image(choice, api.ensure(say), say), say)


def every(torch_source: str, say: Say) -> None:
    """Builds every row, one after another. Exits with 1 if one was not built; each of those has a line.

    A row without a lock is not built: what is in an image is decided by ./inv dev lock, which is committed.
    """
    chosen, failed = [], []
    for row in parse.load().pins.values():
        pin = choose.choose(row.name, (), torch_source)
        try:
            locks.read(pin)
            chosen.append(pin)
        except UsageError as error:
            say(f"{pin.name}: {error}")
            failed.append(pin.name)
    api.ensure(say)
    for pin in chosen:
        try:
            _tell(pin, build.build(pin, say), say)
        except UsageError as error:
            say(f"{pin.name}: {error}")
            failed.append(pin.name)
    if failed:
        raise Exit(f"{len(failed)} of {len(parse.load().pins)} rows were not built: {', '.join(failed)}", code=1)


def _tell(pin: Pin, made: Image, say: Say) -> None:
    build.take_shared_tag(pin)
    done = f"built in {made.seconds:.0f} s" if made.built else "up to date"
    say(f"{made.tag}: {done}, {made.size_bytes / 1e9:.2f} GB, {made.id}; also tagged {pin.shared_tag}")
