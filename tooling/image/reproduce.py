"""`./inv dev reproduce`: builds a pin twice without the build cache, and finds the first file that differs."""

import hashlib
import json
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from dataclasses import astuple, dataclass, fields
from io import BufferedReader
from itertools import zip_longest

from invoke.exceptions import Exit
from rich.table import Table

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.say import say
from tooling.basis.console import PrintableConsole
from tooling.engine import api, docker
from tooling.image import build
from tooling.pins.pin import Pin


@dataclass(frozen=True)
class LayerEntry:
    """The properties of one file that a layer's digest depends on. `content`: its sha256, or a link's target."""

    path: str
    kind: str
    mode: str
    owner: str
    time: float
    size: int
    content: str


def run(pin: Pin, as_json: bool) -> None:
    """Build twice and compare. Raises Exit with 1 and the first difference if the layers differ."""
    api.ensure()
    tags = [f"{pin.image}-{number}" for number in ("first", "second")]
    try:
        for tag in tags:
            started = time.monotonic()
            build.rebuild(pin, tag, "--no-cache")
            say(f"{tag}: built in {time.monotonic() - started:.0f} s")
        show(tags, as_json)
        problem = difference(*tags)
    finally:
        for tag in tags:
            docker.remove_image(tag)
    if problem:
        raise Exit(f"two builds of pin {pin.name} differ: {problem}", code=1)
    say(f"two builds of pin {pin.name} have the same layers")


def show(tags: list[str], as_json: bool) -> None:
    """Print the digests of the layers of both images."""
    pairs = list(zip_longest(*(docker.read_image(tag).layers for tag in tags)))
    if as_json:
        rows = [{"layer": number, "first": one, "second": other} for number, (one, other) in enumerate(pairs)]
        json.dump({"layers": rows, "same": all(one == other for one, other in pairs)}, sys.stdout, indent=2)
        print()
        return
    table = Table(title="layers, the base image's first", title_justify="left")
    for column in ("layer", "first build", "second build", "same"):
        table.add_column(column, no_wrap=True)
    for number, (one, other) in enumerate(pairs):
        table.add_row(str(number), str(one), str(other), "yes" if one == other else "no")
    PrintableConsole(width=180).print(table)


def difference(first: str, second: str) -> str | None:
    """A message with the first difference between the layers of two local images, or None."""
    pairs = list(zip_longest(docker.read_image(first).layers, docker.read_image(second).layers))
    unequal = [(number, pair) for number, pair in enumerate(pairs) if pair[0] != pair[1]]
    if not unequal:
        return None
    number, (one, other) = unequal[0]
    if one is None or other is None:
        return f"one image has {number} layers, the other has more"
    for left, right in zip_longest(entries(first, one), entries(second, other)):
        if left != right:
            return f"layer {number}: {_describe(left, right)}"
    return f"layer {number}: the archives differ, but their files are the same"


def entries(reference: str, layer: str) -> Iterator[LayerEntry]:
    """The files of the layer with the digest `layer`, in the order of the layer."""
    argv = ["docker", "image", "save", reference]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        try:
            with tarfile.open(fileobj=process.stdout, mode="r|") as image:
                for member in image:
                    if member.name == f"blobs/sha256/{layer.partition(':')[2]}":
                        stream = image.extractfile(member)
                        with tarfile.open(fileobj=stream, mode="r|") as packed:
                            yield from (_entry(packed, file) for file in packed)
                        return
            raise UsageError(f"docker image save {reference} has no layer {layer}: the format is unknown")
        finally:
            process.kill()


def _entry(packed: tarfile.TarFile, file: tarfile.TarInfo) -> LayerEntry:
    stream = packed.extractfile(file) if file.isreg() else None
    content = file.linkname
    if isinstance(stream, BufferedReader):
        content = hashlib.file_digest(stream, "sha256").hexdigest()
    owner = f"{file.uid}:{file.gid}"
    return LayerEntry(file.name, file.type.decode(), f"{file.mode:o}", owner, file.mtime, file.size, content)


def _describe(left: LayerEntry | None, right: LayerEntry | None) -> str:
    if left is None or right is None or left.path != right.path:
        found = [entry.path if entry else "nothing" for entry in (left, right)]
        return f"one has {found[0]} where the other has {found[1]}"
    names = [field.name for field in fields(LayerEntry)]
    changed = [
        f"{name} {one!r} and {other!r}"
        for name, one, other in zip(names, astuple(left), astuple(right), strict=True)
        if one != other
    ]
    return f"{left.path}: {', '.join(changed)}"
