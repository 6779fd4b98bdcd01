"""The tasks of ./inv: a namespace only, the work is in tooling/."""

from __future__ import annotations

from invoke.context import Context
from invoke.tasks import task

from tooling import engine, host_doctor, images, locks, matrix, pins, suite
from tooling.say import say


@task(name="matrix")
def show_matrix(_c: Context, json: bool = False) -> None:
    """Show the pins: one row is one set of versions that fit together."""
    matrix.show(pins.load(), as_json=json)


@task(help={"pin": "a row of ./inv matrix; the default pin needs no flag"})
def build(_c: Context, pin: str | None = None) -> None:
    """Make the image cpu-train-stack:PIN."""
    chosen = pins.load().pin(pin)
    engine.ensure(say)
    image = images.build(chosen, say)
    say(f"{image.tag}: {image.size_bytes / 1e9:.2f} GB, {image.id}")


@task(help={"pin": "a row of ./inv matrix; the default pin needs no flag"})
def lock(_c: Context, pin: str | None = None) -> None:
    """Make a pin's lock anew: images/locks/PIN.txt, every wheel with its sha256."""
    say(f"wrote {locks.write(pins.load().pin(pin), say)}")


@task
def doctor(_c: Context, json: bool = False) -> None:
    """Show what this machine has and lacks, with the mend."""
    host_doctor.run(as_json=json)


@task(help={"unit": "only the part that needs no Docker"})
def test(_c: Context, unit: bool = False) -> None:
    """Run the checks (ruff, mypy) and the whole test suite."""
    suite.run(unit_only=unit)
