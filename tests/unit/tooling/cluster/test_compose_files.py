"""The files in compose/ as plain Compose reads them."""

import os
import re
import shlex
import shutil
import subprocess

import pytest

from tooling.basis import yaml
from tooling.basis.paths import COMPOSE
from tooling.cluster import demo
from tooling.cluster.compose import LAUNCHERS
from tooling.pins import parse


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_the_default_command_is_the_demos(launcher: str) -> None:
    row = parse.load().pin()
    words = demo.command(row, demo.BATCH_SIZE // 2, "ccl", "train.csv", "test.csv")
    text = (
        " ".join(words).replace("/data/", "/data/demo/data/").replace("=/model", "=/data/models/all-MiniLM-L6-v2")
    )
    command = yaml.read(COMPOSE / f"{launcher}.yaml")["services"]["node-0"]["command"]
    default = re.search(r"\$\{COMMAND:-(.*)\}", command, re.DOTALL)
    assert default
    assert sorted(shlex.split(default[1])) == sorted(text.split())
    images = set(re.findall(r"\$\{IMAGE:-(.*?)\}", (COMPOSE / f"{launcher}.yaml").read_text()))
    assert images == {row.shared_tag}


@pytest.mark.skipif(shutil.which("docker") is None, reason="docker compose reads the files, and docker is missing")
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_compose_reads_the_file_without_a_warning(launcher: str) -> None:
    environ = {name: os.environ[name] for name in ("HOME", "PATH") if name in os.environ}
    for variables in (
        {},
        {"WORKERS": "3", "CPUS": "1.5", "OUTPUT": "/tmp", "DATA": "/tmp", "COMMAND": "run '$x y'"},
    ):
        done = subprocess.run(
            ["docker", "compose", f"--file={COMPOSE / launcher}.yaml", "config"],
            env=environ | variables, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        if "is not a docker command" in done.stderr:
            pytest.skip("docker has no compose plugin")
        assert (done.returncode, done.stderr) == (0, "")
        assert ("replicas: 3" in done.stdout) is bool(variables)
