"""Runs a command, and answers its reports of progress as Kubeflow Trainer does, until it ends.

progress_server.py CERTIFICATES SECONDS COMMAND...

SECONDS: how long each report waits for its answer; "down": there is no server. Prints the reports as JSON.
"""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

folder, seconds, *command = sys.argv[1:]
reports: list[object] = []


class Status(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        reports.append({"path": self.path, "token": self.headers["Authorization"], **body["trainerStatus"]})
        time.sleep(float(seconds))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Status)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(f"{folder}/cert.pem", f"{folder}/key.pem")
server.socket = context.wrap_socket(server.socket, server_side=True)
port = server.server_address[1]
if seconds == "down":
    server.server_close()
else:
    threading.Thread(target=server.serve_forever, daemon=True).start()
token = Path("/tmp/token")
token.write_text("secret\n")
settings = {"SERVER_URL": f"https://127.0.0.1:{port}/status", "SERVER_CA_CERT": f"{folder}/ca.pem"}
settings["SERVER_TOKEN"] = str(token)
started = time.monotonic()
environment = {f"KUBEFLOW_TRAINER_{name}": value for name, value in settings.items()}
done = subprocess.run(command, env={**os.environ, **environment}, stdout=sys.stderr, check=False)
print(json.dumps({"reports": reports, "seconds": time.monotonic() - started}))
sys.exit(done.returncode)
