"""Two images' layers side by side, down to the first file in which they differ."""

from __future__ import annotations

import hashlib
import itertools
import subprocess
import tarfile
from collections.abc import Iterator
from dataclasses import astuple, dataclass, fields

from tooling.basis.errors import UsageError
from tooling.image import inspect


@dataclass(frozen=True)
class Entry:
    """One file of a layer, as far as its digest depends on it. `content` is a sha256 or a link's target."""

    path: str
    kind: str
    mode: str
    owner: str
    time: float
    size: int
    content: str


def difference(first: str, second: str) -> str | None:
    """In words, the first thing that the layers of two local images differ in; None if nothing does."""
    pairs = list(itertools.zip_longest(inspect.layers(first), inspect.layers(second)))
    unequal = [(number, pair) for number, pair in enumerate(pairs) if pair[0] != pair[1]]
    if not unequal:
        return None
    number, (one, other) = unequal[0]
    if one is None or other is None:
        return f"one image has {number} layers, the other has more"
    for left, right in itertools.zip_longest(entries(first, one), entries(second, other)):
        if left != right:
            return f"layer {number}: {_words(left, right)}"
    return f"layer {number}: the same files, packed differently"


def entries(reference: str, layer: str) -> Iterator[Entry]:
    """The files of one layer (its digest), in the layer's own order."""
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
            raise UsageError(f"{reference} has no layer {layer}: this engine saves images in another format")
        finally:
            process.kill()


def _entry(packed: tarfile.TarFile, file: tarfile.TarInfo) -> Entry:
    stream = packed.extractfile(file) if file.isreg() else None
    content = hashlib.file_digest(stream, "sha256").hexdigest() if stream else file.linkname  # type: ignore[arg-type] # a stream of bytes is enough
    owner = f"{file.uid}:{file.gid}"
    return Entry(file.name, file.type.decode(), f"{file.mode:o}", owner, file.mtime, file.size, content)


def _words(left: Entry | None, right: Entry | None) -> str:
    if left is None or right is None or left.path != right.path:
        found = [entry.path if entry else "nothing" for entry in (left, right)]
        return f"one has {found[0]} where the other has {found[1]}"
    names = [field.name for field in fields(Entry)]
    changed = [
        f"{name} {one!r} and {other!r}"
        for name, one, other in zip(names, astuple(left), astuple(right), strict=True)
        if one != other
    ]
    return f"{left.path}: {', '.join(changed)}"
