"""The default command and image of the files in compose/."""

import re
import shlex

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
