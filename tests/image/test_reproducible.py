"""A step of the Dockerfile makes the same layer each time (images/scripts/settled), or the difference is named."""

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import containers
from tooling.basis.paths import IMAGES
from tooling.engine import api, docker
from tooling.image import base, reproduce
from tooling.pins import parse

DOCKERFILE = """\
FROM {base}
RUN --network=none --mount=type=bind,source=scripts,target=/run/scripts {prefix} sh -c '\
 mkdir -p /opt/made/below /run/made && echo a > /opt/made/below/a && ln -s a /opt/made/below/link &&\
 useradd --uid 1234 somebody && chmod 755 /opt && head -c 1 /run/scripts/trim.py > /etc/read'
"""


@pytest.fixture
def build(tmp_path: Path) -> Iterator[Callable[[str], str]]:
    """Builds the step with a command before it, without the build cache; gives the image's tag."""
    api.ensure()
    ground = base.ensure(parse.load().pin())
    shutil.copytree(IMAGES / "scripts", tmp_path / "scripts")
    tags: list[str] = []

    def make(prefix: str) -> str:
        tags.append(f"{containers.unique_name()}:step")
        (tmp_path / "Dockerfile").write_text(DOCKERFILE.format(base=ground.reference, prefix=prefix))
        argv = ["docker", "buildx", "build", "--builder", "default", "--provenance=false", "--no-cache", "--quiet"]
        argv += ["--tag", tags[-1], str(tmp_path)]
        subprocess.run(argv, capture_output=True, check=True, timeout=300)
        return tags[-1]

    yield make
    for tag in tags:
        subprocess.run(["docker", "image", "rm", "--force", tag], capture_output=True, check=False, timeout=60)


def test_a_settled_step_makes_the_same_layer_twice(build: Callable[[str], str]) -> None:
    first, second = (build("/run/scripts/settled") for _ in range(2))
    assert docker.read_image(first).layers == docker.read_image(second).layers, reproduce.difference(first, second)
    made = {entry.path: entry for entry in reproduce.entries(first, docker.read_image(first).layers[-1])}
    changed = ("opt", "opt/made/below/a", "opt/made/below/link", "run/made", "etc/shadow")
    assert len({made[path].time for path in changed}) == 1
    assert not {path for path in made if path.startswith("run/scripts")}


def test_the_first_file_in_which_two_builds_differ_is_named(build: Callable[[str], str]) -> None:
    first = build("env")
    time.sleep(1.1)  # a layer's times are whole seconds
    told = reproduce.difference(first, build("env"))
    assert told is not None
    assert "time" in told
