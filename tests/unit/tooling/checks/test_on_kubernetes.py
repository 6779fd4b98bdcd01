"""What ./inv dev kubernetes needs before it starts a job."""

import os
import sys
from pathlib import Path

import pytest

from cpu_train_stack.cli.errors import UsageError
from tests.unit.tooling.kubernetes.jobs import IMAGE
from tooling.checks import on_kubernetes, suite

KUBECTL = """#!/bin/sh
echo "$@" >>"$0.log"
case "$*" in *"get persistentvolumeclaim nothere"*)
    echo 'Error from server (NotFound): persistentvolumeclaims "nothere" not found' >&2; exit 1;;
esac
"""


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A kubectl that knows every claim but one, and a file for KUBECONFIG."""
    path = tmp_path / "kubectl"
    path.write_text(KUBECTL)
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("KUBECONFIG", str(path))
    monkeypatch.setattr(suite, "install_requirements", lambda: None)
    return path


def test_one_line_says_all_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    with pytest.raises(UsageError, match=r"KUBECONFIG is '', .*; --image is missing; --pvc is missing$"):
        on_kubernetes.run("", "ml", "", "")


def test_a_claim_that_does_not_exist_is_an_error(client: Path) -> None:
    with pytest.raises(UsageError, match=r'get persistentvolumeclaim nothere: Error .* "nothere" not found$'):
        on_kubernetes.run(IMAGE, "ml", "nothere", "")


def test_the_tests_get_the_options(client: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text(
        '#!/bin/sh\necho "$CTS_KUBERNETES_IMAGE $CTS_KUBERNETES_NAMESPACE $CTS_KUBERNETES_PVC $*" >"$0.log"\n'
    )
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    on_kubernetes.run(IMAGE, "ml", "training", "trainjob")
    assert (tmp_path / "python.log").read_text().split() == [
        *(IMAGE, "ml", "training", "-m", "pytest", on_kubernetes.TESTS, "-v", "-k", "trainjob")
    ]
