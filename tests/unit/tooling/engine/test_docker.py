"""Containers of one command, with a client that is a script."""

import time
from pathlib import Path

import pytest

from tooling.engine import docker


def test_an_engine_that_does_not_remove_a_container_does_not_block_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = tmp_path / "client"
    client.write_text('#!/bin/sh\n[ "$1" = rm ] && exec sleep 30\nexit 3\n')
    client.chmod(0o755)
    monkeypatch.setattr(docker, "_REMOVE_SECONDS", 0.1)
    started = time.monotonic()
    assert docker.run("image", ["true"], client=[str(client)]).returncode == 3
    assert time.monotonic() - started < 20
