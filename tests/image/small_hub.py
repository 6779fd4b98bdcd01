"""Runs inside the image: `train` command lines beside a hub in small, which goes before the last of them.

Usage: small_hub.py FILE, with a JSON list of argument lists. Prints JSON: {"runs": as many_runs.py,
"commits": lists of the files that were pushed}. Repositories of `me` may be written to, but nothing comes into
me/full; those of others may only be read.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMITS: list[list[str]] = []


class Hub(BaseHTTPRequestHandler):
    """The part of the hub's interface that Trainer needs."""

    def log_message(self, *_: object) -> None:
        """Prints nothing."""

    def do_GET(self) -> None:
        self.do_POST()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0)).decode()
        code = 200
        document: dict[str, object] = {}
        if self.path == "/api/repos/create":
            asked = json.loads(body)
            owner = asked.get("organization") or "me"
            code = 200 if owner == "me" else 403
            document = {"url": f"{os.environ['HF_ENDPOINT']}/{owner}/{asked['name']}"}
        elif self.path.endswith("/auth-check/write"):
            code = 200 if "/me/" in self.path else 403
        elif "/preupload/" in self.path:
            paths = [file["path"] for file in json.loads(body)["files"]]
            document = {
                "files": [{"path": path, "uploadMode": "regular", "shouldIgnore": False} for path in paths]
            }
        elif "/commit/" in self.path and "/me/full/" in self.path:
            code = 403
        elif "/commit/" in self.path:
            rows = [json.loads(row) for row in body.splitlines()]
            COMMITS.append(sorted(row["value"]["path"] for row in rows if row["key"] == "file"))
            document = {"commitUrl": f"{os.environ['HF_ENDPOINT']}/me/x/commit/1", "commitOid": "1" * 40}
        data = json.dumps(document).encode()
        self.send_response(code)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    os.environ["HF_ENDPOINT"] = f"http://127.0.0.1:{server.server_port}"
    # The libraries read the endpoint when they are imported.
    run = runpy.run_path(str(Path(__file__).with_name("many_runs.py")))["run"]
    lines = json.loads(Path(sys.argv[1]).read_text())
    runs = [run(line) for line in lines[:-1]]
    server.shutdown()
    server.server_close()
    runs.append(run(lines[-1]))
    json.dump({"runs": runs, "commits": COMMITS}, sys.stdout)
