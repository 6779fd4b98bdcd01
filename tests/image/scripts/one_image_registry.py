"""A registry on loopback with one image of random bytes. Usage: one_image_registry.py MEGABYTES

Prints HOST:PORT/NAME@DIGEST and serves it until it is killed. It needs nothing but Python: a test starts it in the
network of an engine that reaches no other registry.
"""

from __future__ import annotations

import gzip
import hashlib
import http.server
import io
import json
import os
import sys
import tarfile

_MEDIA = "application/vnd.docker.distribution.manifest.v2+json"


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _image(size: int) -> dict[str, bytes]:
    """Manifest, configuration and layer, by their digests, the manifest first."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        entry = tarfile.TarInfo("random")
        entry.size = size
        tar.addfile(entry, io.BytesIO(os.urandom(size)))
    tar_bytes = archive.getvalue()
    layer = gzip.compress(tar_bytes, 1)
    rootfs = {"type": "layers", "diff_ids": [_digest(tar_bytes)]}
    config = json.dumps({"architecture": "amd64", "os": "linux", "config": {}, "rootfs": rootfs}).encode()
    manifest = {
        "schemaVersion": 2,
        "mediaType": _MEDIA,
        "config": {
            "mediaType": "application/vnd.docker.container.image.v1+json",
            "size": len(config),
            "digest": _digest(config),
        },
        "layers": [
            {
                "mediaType": "application/vnd.docker.image.rootfs.diff.tar.gzip",
                "size": len(layer),
                "digest": _digest(layer),
            }
        ],
    }
    return {_digest(content): content for content in (json.dumps(manifest).encode(), config, layer)}


def main() -> None:
    blobs = _image(int(sys.argv[1]) * 1_000_000)

    class Registry(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = blobs.get(self.path.rpartition("/")[2], b"{}")
            self.send_response(200)
            self.send_header("Content-Type", _MEDIA if "manifests" in self.path else "application/octet-stream")
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Docker-Content-Digest", _digest(content))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        do_HEAD = do_GET  # noqa: N815 - the name that the server looks for

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Registry) as server:
        print(f"127.0.0.1:{server.server_address[1]}/one@{next(iter(blobs))}", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
