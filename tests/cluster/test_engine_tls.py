"""./inv and an engine behind TLS, as on another machine."""

import os
import subprocess
from pathlib import Path

from tests import certificates, second_engine
from tests.cluster.conftest import INV
from tooling.cluster.compose import PROJECT_PREFIX
from tooling.cluster.nodes import PROJECT_LABEL, SERVICE_LABEL


def test_the_nodes_of_an_engine_behind_tls_are_shown(tmp_path: Path) -> None:
    folder, own = tmp_path / "engine", tmp_path / "certificates"
    folder.mkdir()
    certificates.make(own)
    files = [f"--tlscacert={own}/ca.pem", f"--tlscert={own}/cert.pem", f"--tlskey={own}/key.pem"]
    with second_engine.running(folder, "--host=tcp://127.0.0.1:2376", "--tlsverify", *files) as engine:
        engine.docker("import", "-", "empty:made", stdin=bytes(10240))
        labels = [f"--label={PROJECT_LABEL}={PROJECT_PREFIX}far", f"--label={SERVICE_LABEL}=node-0"]
        engine.docker("create", *labels, "empty:made", "true")
        assert engine.process is not None
        inside = ["nsenter", f"--net=/proc/{engine.process.pid}/ns/net"]  # the engine has a separate loopback
        chosen = {"DOCKER_HOST": "tcp://127.0.0.1:2376", "DOCKER_TLS_VERIFY": "1", "DOCKER_CERT_PATH": str(own)}
        shown = subprocess.run(
            [*inside, INV, "status", "--name=far"],
            env={**os.environ, **chosen},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "node-0" in shown.stdout
