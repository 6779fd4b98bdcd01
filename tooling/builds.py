"""`./inv build`: one pin, a user's own combination, or every row that can be built."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from invoke.exceptions import Exit

from tooling import engine, images, locks, pins, variants
from tooling.choice import Choice, image
from tooling.errors import UsageError
from tooling.images import Image
from tooling.pin import Ccl, TorchSource

Say = Callable[[str], None]


def one(name: str | None, assignments: Sequence[str], torch_source: str, say: Say) -> None:
    """Builds one pin; a user's own combination is resolved first, once."""
    choice = Choice(name, tuple(assignments), torch_source)
    variants.choose(name, assignments, torch_source)  # what cannot be is said before an engine is started
    _tell(image(choice, engine.ensure(say), say), say)


def every(torch_source: str, say: Say) -> None:
    """Builds every row that has a lock, and says why the others are not built. Exits with 1 if a build failed."""
    chosen, failed = [], []
    for row in pins.load().pins.values():
        if torch_source == TorchSource.DEFAULT and row.ccl is Ccl.INTEL:
            say(f"{row.name}: skipped, Intel's bindings take only the row's own torch")
            continue
        pin = variants.choose(row.name, (), torch_source)
        try:
            locks.read(pin)
        except UsageError as error:
            say(f"{row.name}: skipped, {error}")
            continue
        chosen.append(pin)
    engine.ensure(say)
    for pin in chosen:
        try:
            _tell(images.build(pin, say), say)
        except UsageError as error:
            say(f"{pin.name}: {error}")
            failed.append(pin.name)
    if failed:
        raise Exit(f"{len(failed)} of {len(chosen)} builds failed: {', '.join(failed)}", code=1)


def _tell(made: Image, say: Say) -> None:
    done = f"built in {made.seconds:.0f} s" if made.built else "up to date"
    say(f"{made.tag}: {done}, {made.size_bytes / 1e9:.2f} GB, {made.id}")
