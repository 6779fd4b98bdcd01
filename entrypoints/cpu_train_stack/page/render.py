"""The HTML file: the blocks as JSON, with the script and style that draw them. The file needs no network.

The data cannot become HTML: JSON in the page has no "<", and the script inserts texts as texts. A policy in the
page (Content-Security-Policy) lets the browser run only the scripts whose hashes it lists, and load nothing.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from pathlib import Path
from typing import Any

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.files import write_atomic
from cpu_train_stack.page import blocks
from cpu_train_stack.page.blocks import Page

HTML_HELP = "also write an HTML page with pictures"

_ASSETS = Path(__file__).parent / "assets"
# What ends a script or begins a comment in HTML, and line ends that JavaScript knows and JSON does not.
_ESCAPED = str.maketrans({one: f"\\u{ord(one):04x}" for one in "<>&\u2028\u2029"})


def save(page: Page, file: Path) -> Path:
    """Write the page so that no reader sees an incomplete file. Raises UsageError if that is impossible."""
    try:
        write_atomic(file, html_text(page))
    except OSError as error:
        raise UsageError(
            f"cannot write '{file}': {error.strerror}; name a file in a folder that you can write to"
        ) from error
    return file


def html_text(page: Page) -> str:
    """The page's HTML."""
    scripts = {"script": _asset("charts.js") + _asset("page.js"), "uplot": _asset("uPlot.iife.min.js")}
    values = {
        **scripts,
        "policy": html.escape(_policy(*scripts.values())),
        "title": html.escape(page.title),
        "verdict": html.escape(page.verdict),
        "licence": _asset("LICENSE").replace("--", "- -"),
        "style": _asset("uPlot.min.css") + "\n" + _asset("page.css"),
        "data": json_text(blocks.encode(page)),
    }
    text = re.sub(r"\{\{(\w+)\}\}", lambda found: values[found[1]], _asset("page.html"))
    return text.encode("utf-8", "backslashreplace").decode()  # names of files may have bytes that are not UTF-8


def json_text(document: Any) -> str:
    """JSON for a script element: valid JSON that contains no HTML."""
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.translate(_ESCAPED)


def _policy(*scripts: str) -> str:
    hashes = " ".join(f"'sha256-{_digest(text)}'" for text in scripts)
    return f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; base-uri 'none'"


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")
