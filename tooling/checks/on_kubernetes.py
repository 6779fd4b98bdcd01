"""`./inv dev kubernetes`: the manifests with their real operators, on the cluster that KUBECONFIG names."""

import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

from invoke.exceptions import Exit

from cpu_train_stack.cli.errors import UsageError, check_all
from tooling.basis.paths import ROOT
from tooling.checks import suite
from tooling.kubernetes import syntax

TESTS = "tests/cluster/test_operators.py"
# What the tests need beside KUBECONFIG, by option.
VARIABLES = {
    "--image": "CTS_KUBERNETES_IMAGE",
    "--namespace": "CTS_KUBERNETES_NAMESPACE",
    "--pvc": "CTS_KUBERNETES_PVC",
}
_ANSWER_SECONDS = 30


def run(image: str, namespace: str, pvc: str, only: str) -> None:
    """Run the tests whose names match `only`. Raises UsageError, or Exit with the exit code of pytest."""
    options = dict(zip(VARIABLES, (image, namespace, pvc), strict=True))
    check_all([_check_client, *(partial(_check_given, *option) for option in options.items())])
    syntax.image(image)
    _check_answer("version")
    _check_answer(f"--namespace={namespace}", "get", "persistentvolumeclaim", pvc)
    suite.install_requirements()
    settings = {VARIABLES[option]: value for option, value in options.items()}
    chosen = ["-k", only] if only else []
    argv = [sys.executable, "-m", "pytest", TESTS, "-v", *chosen]
    done = subprocess.run(argv, cwd=ROOT, env={**os.environ, **settings}, check=False)
    if done.returncode:
        raise Exit(code=done.returncode)


def _check_client() -> None:
    named = os.environ.get("KUBECONFIG", "")
    if not any(Path(path).is_file() for path in named.split(os.pathsep)):
        raise UsageError(f"KUBECONFIG is {named!r}, expected the path of a kubeconfig file")
    if not shutil.which("kubectl"):
        raise UsageError("kubectl is not on PATH: install it")


def _check_given(option: str, value: str) -> None:
    if not value:
        raise UsageError(f"{option} is missing")


def _check_answer(*words: str) -> None:
    argv = ["kubectl", f"--request-timeout={_ANSWER_SECONDS}s", *words]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=2 * _ANSWER_SECONDS)
    except subprocess.TimeoutExpired:
        raise UsageError(f"kubectl {' '.join(words)}: no answer within {2 * _ANSWER_SECONDS} s") from None
    if done.returncode:
        reason = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise UsageError(f"kubectl {' '.join(words)}: {reason[0]}")
