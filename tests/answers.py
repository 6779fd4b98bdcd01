"""Answers in JSON of HTTP servers that stand in for a part of an API: the engine's, or Kubernetes'."""

import http.server
import json


def answer(handler: http.server.BaseHTTPRequestHandler, document: object, status: int = 200) -> None:
    body = json.dumps(document).encode()
    handler.send_response(status)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)
