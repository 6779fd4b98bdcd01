"""The pip of the tests is forked from one process: its start takes longer than most of its work."""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import IO, Any

import pytest

from tests.forks import Fork, forks
from tooling.basis.paths import ROOT
from tooling.wheels import pip

_MODULES = (
    "pip._internal.cli.main_parser",
    "pip._internal.commands.download",
    "pip._internal.commands.install",
    "pip._internal.metadata.importlib",
    "pip._internal.resolution.resolvelib.resolver",
    "pip._vendor.truststore",
)


@pytest.fixture(autouse=True)
def quick_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start pip as a fork."""

    def start(argv: Sequence[str], env: Mapping[str, str], stdout: IO[Any], **_: object) -> Fork:
        assert argv[0] == sys.executable
        return forks(_MODULES, ROOT).start(argv[1:], [stdout.fileno()] * 3, env=env)

    monkeypatch.setattr(pip, "subprocess", SimpleNamespace(**{**vars(subprocess), "Popen": start}))
