"""The tasks about pins and images."""

from __future__ import annotations

from invoke.context import Context

from tooling.basis.errors import UsageError
from tooling.basis.say import say
from tooling.cli.options import PIN_HELP, SET_HELP, TORCH_SOURCE_HELP, task
from tooling.image import push as pushing
from tooling.image import reproduce as reproducing
from tooling.image.build import build_all, build_one
from tooling.image.choice import Choice
from tooling.pins import choose, parse, table
from tooling.wheels import check, locks


@task(name="matrix")
def show_matrix(_c: Context, json: bool = False) -> None:
    """Show the pins: each row is a set of versions that fit together."""
    table.show(parse.load(), as_json=json)


@task(name="check-matrix", help={"pin": "only this row"})
def check_matrix(_c: Context, pin: str | None = None) -> None:
    """Check every row: versions that fit together, and wheels that pip finds for it."""
    loaded = parse.load()
    check.check([loaded.pin(pin)] if pin else list(loaded.pins.values()), say)


@task(
    iterable=["set"],
    help={
        "pin": PIN_HELP,
        "all": "build every row; report failures and exit with 1",
        "set": SET_HELP,
        "torch-source": TORCH_SOURCE_HELP,
    },
)
def build(
    _c: Context, set: list[str], pin: str | None = None, all: bool = False, torch_source: str = "row"
) -> None:
    """Build the image cpu-train-stack:PIN."""
    if all and (pin or set):
        raise UsageError("build takes --all, or --pin and --set: give one of the two")
    if all:
        build_all(torch_source, say)
    else:
        build_one(choose.choose(pin, set, torch_source), say)


@task(
    help={
        "pin": PIN_HELP,
        "torch-source": TORCH_SOURCE_HELP,
    }
)
def lock(_c: Context, pin: str | None = None, torch_source: str = "row") -> None:
    """Re-create a pin's lock: images/locks/PIN.txt, every wheel with its sha256."""
    say(f"wrote {locks.write(choose.choose(pin, (), torch_source), say)}")


@task(
    help={
        "pin": PIN_HELP,
        "torch-source": TORCH_SOURCE_HELP,
        "json": "one JSON document on standard output instead of a table",
    }
)
def reproduce(_c: Context, pin: str | None = None, torch_source: str = "row", json: bool = False) -> None:
    """Build a pin twice without the build cache and compare the layers, down to the first file that differs."""
    reproducing.run(Choice(pin, torch_source=torch_source), json, say)


@task(
    help={
        "registry": "HOST[:PORT]/NAME; credentials come from docker login",
        "pin": PIN_HELP,
        "torch-source": TORCH_SOURCE_HELP,
        "alias": "also move the tag PIN to this image",
        "output": "folder for image.lock.json and image.spdx.json",
    }
)
def push(
    _c: Context,
    registry: str = "",
    pin: str | None = None,
    torch_source: str = "row",
    alias: bool = False,
    output: str = ".",
) -> None:
    """Push the tested image under a tag that never moves, and write image.lock.json."""
    pushing.run(registry, Choice(pin, torch_source=torch_source), alias, output, say)


@task(
    help={
        "pin": PIN_HELP,
        "torch-source": TORCH_SOURCE_HELP,
        "output": "the file; default .cache/sbom/PIN.spdx.json",
    }
)
def sbom(_c: Context, pin: str | None = None, torch_source: str = "row", output: str | None = None) -> None:
    """Write an image's Debian and Python packages as SPDX 2.3 JSON."""
    from tooling.image import sbom as bill  # spdx-tools takes 0.4 s to import

    bill.run(Choice(pin, torch_source=torch_source), output, say)
