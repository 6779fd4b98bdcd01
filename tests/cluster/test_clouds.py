"""docs/clouds.md: each cloud's script waits for the notice of a metadata server, and creates the file."""

import re
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tooling.basis.paths import ROOT

PAGE = (ROOT / "docs" / "clouds.md").read_text(encoding="utf-8")
SCRIPTS = {
    name: re.sub("^   ", "", script, flags=re.MULTILINE)
    for name, script in re.findall(r"^   ```bash\n   # (.*?)\n(.*?)   ```$", PAGE, flags=re.DOTALL | re.MULTILINE)
}
TOKEN = "a-token"  # noqa: S105 - of the server below
# Without a notice, and with one, in the form of the vendors' pages. None: 404.
ANSWERS: dict[tuple[str, str, str], tuple[str | None, str]] = {
    ("/latest/meta-data/spot/instance-action", "X-aws-ec2-metadata-token", TOKEN): (
        None,
        '{"action": "terminate", "time": "2026-11-29T08:22:00Z"}',
    ),
    ("/computeMetadata/v1/instance/preempted", "Metadata-Flavor", "Google"): ("FALSE", "TRUE"),
    ("/metadata/scheduledevents?api-version=2020-07-01", "Metadata", "true"): (
        '{"DocumentIncarnation": 1, "Events": [{"EventType": "Freeze", "EventStatus": "Scheduled"}]}',
        '{"DocumentIncarnation": 2, "Events": [{"EventType": "Preempt", "EventStatus": "Scheduled"}]}',
    ),
}


class Metadata(BaseHTTPRequestHandler):
    """The metadata servers of the three clouds."""

    noticed, asked = threading.Event(), threading.Event()

    def do_GET(self) -> None:
        for (path, header, value), answers in ANSWERS.items():
            if self.path == path and self.headers[header] == value:
                self._answer(answers[self.noticed.is_set()])
                self.asked.set()
                return
        self._answer(None)

    def do_PUT(self) -> None:
        right = self.path == "/latest/api/token" and self.headers["X-aws-ec2-metadata-token-ttl-seconds"]
        self._answer(TOKEN if right else None)

    def _answer(self, text: str | None) -> None:
        self.send_response(404 if text is None else 200)
        self.end_headers()
        self.wfile.write((text or "").encode())

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def metadata() -> Iterator[str]:
    Metadata.noticed.clear()
    Metadata.asked.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Metadata) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


def test_the_page_has_a_script_for_each_cloud() -> None:
    assert list(SCRIPTS) == ["AWS", "Google Cloud", "Azure"]


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl, which hosts of clouds have")
@pytest.mark.parametrize("cloud", SCRIPTS)
def test_the_file_is_created_at_the_notice_and_not_before(cloud: str, metadata: str, tmp_path: Path) -> None:
    script = re.sub(r"169\.254\.169\.254|metadata\.google\.internal", metadata, SCRIPTS[cloud])
    script = script.replace("/nfs/out/first", str(tmp_path)).replace("sleep 5", "sleep 1")
    with subprocess.Popen(["bash", "-c", script], stderr=subprocess.PIPE, text=True) as process:
        try:
            assert Metadata.asked.wait(30)
            time.sleep(0.3)
            assert process.poll() is None
            assert list(tmp_path.iterdir()) == []
            Metadata.noticed.set()
            _, errors = process.communicate(timeout=30)
        finally:
            process.kill()
    assert (process.returncode, errors) == (0, "")
    assert [file.name for file in tmp_path.iterdir()] == ["stop"]
