"""Files that no layer of the image may hold, even if a later layer hides them."""

import io
import re
import subprocess
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

KEY_FILES = re.compile(r"ssh_host_.*|id_(rsa|dsa|ecdsa|ed25519).*|authorized_keys.*|known_hosts.*|.*\.pem\.key")
PRIVATE_KEY = re.compile(rb"-----BEGIN ([A-Z]+ )?PRIVATE KEY-----\n[A-Za-z0-9+/=\n]{64}")
# Larger than any key, and so small that looking into every file takes no time beside reading the layers.
KEY_BYTES = 20_000
# Larger than any of the JSON documents that the export has beside the layers.
DOCUMENT_BYTES = 1_000_000


@dataclass(frozen=True)
class Entry:
    """A file of a layer. `content` is empty for large ones."""

    layer: int
    path: PurePosixPath
    content: bytes


def files(image: str) -> Iterator[Entry]:
    """Every file of every layer, in the order in which the engine exports them."""
    with subprocess.Popen(["docker", "save", image], stdout=subprocess.PIPE) as export:
        layers = 0
        with tarfile.open(fileobj=export.stdout, mode="r|") as archive:
            for blob in archive:
                stream = archive.extractfile(blob) if blob.isfile() else None
                if stream is None:
                    continue
                if blob.size < DOCUMENT_BYTES:
                    content = stream.read()
                    if content[:1] in (b"{", b"["):
                        continue
                    stream = io.BytesIO(content)
                with tarfile.open(fileobj=stream, mode="r|") as layer:
                    yield from (Entry(layers, *file) for file in contents(layer))
                layers += 1
    assert export.returncode == 0


def contents(layer: tarfile.TarFile) -> Iterator[tuple[PurePosixPath, bytes]]:
    """The files of one layer; of large ones the name alone."""
    for member in layer:
        file = layer.extractfile(member) if member.isfile() else None
        if file is not None:
            yield PurePosixPath(member.name), file.read() if member.size <= KEY_BYTES else b""


def test_no_layer_holds_a_key_or_a_list_of_who_may_log_in(image: str) -> None:
    found, seen, layers = [], 0, 0
    for entry in files(image):
        seen, layers = seen + 1, entry.layer + 1
        if KEY_FILES.fullmatch(entry.path.name) or PRIVATE_KEY.search(entry.content):
            found.append(f"layer {entry.layer}: {entry.path}")
    assert found == []
    assert seen > 10_000
    assert layers >= 5
