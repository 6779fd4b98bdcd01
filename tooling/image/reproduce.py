"""`./inv dev reproduce`: two builds of one pin, both without the build cache, and their layers side by side."""

from __future__ import annotations

import json
import sys
import time
from itertools import zip_longest

from invoke.exceptions import Exit
from rich.console import Console
from rich.table import Table

from tooling.basis.say import Say
from tooling.engine import api
from tooling.image import build, inspect, layers, registry
from tooling.image.choice import Choice
from tooling.pins import choose


def run(choice: Choice, as_json: bool, say: Say) -> None:
    """Builds twice and compares. Raises Exit with 1 and the first difference if the layers are not the same."""
    pin = choose.choose(choice.pin, (), choice.torch_source)
    api.ensure(say)
    tags = [f"{pin.image}-{number}" for number in ("first", "second")]
    try:
        for tag in tags:
            started = time.monotonic()
            build.build_uncached(pin, tag, say)
            say(f"{tag}: built in {time.monotonic() - started:.0f} s")
        show(tags, as_json)
        different = layers.difference(*tags)
    finally:
        for tag in tags:
            registry.remove_tag(tag)
    if different:
        raise Exit(f"two builds of pin {pin.name} differ: {different}", code=1)
    say(f"two builds of pin {pin.name} have the same layers")


def show(tags: list[str], as_json: bool) -> None:
    """Prints both lists of digests."""
    pairs = list(zip_longest(*(inspect.layers(tag) for tag in tags)))
    if as_json:
        rows = [{"layer": number, "first": one, "second": other} for number, (one, other) in enumerate(pairs)]
        json.dump({"layers": rows, "same": all(one == other for one, other in pairs)}, sys.stdout, indent=2)
        print()
        return
    table = Table(title="layers, the base's first", title_justify="left")
    for column in ("layer", "first build", "second build", "same"):
        table.add_column(column, no_wrap=True)
    for number, (one, other) in enumerate(pairs):
        table.add_row(str(number), str(one), str(other), "yes" if one == other else "no")
    Console(width=180).print(table)
