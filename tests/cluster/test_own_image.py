"""docs/own-image.md: a user's own Dockerfile on top of the image, as the page has it."""

import re
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from tests import containers
from tests.cluster.conftest import inv
from tests.containers import works
from tooling.basis.paths import ROOT
from tooling.engine import docker

PAGE = (ROOT / "docs" / "own-image.md").read_text(encoding="utf-8")
USER_AND_FILES = "id -u; jq --version; stat -c '%U %a' /opt/code/train.py; python -c 'import torch'"


@pytest.fixture(scope="module")
def own(image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The image of the page's Dockerfile. Its code is an example of this checkout, which others may not read."""
    tag, folder = f"{containers.unique_name()}:own", tmp_path_factory.mktemp("own") / "mine"
    (dockerfile,) = re.findall(r" *```dockerfile\n(.*?) *```", PAGE, flags=re.DOTALL)
    (folder / "code").mkdir(parents=True)
    (folder / "Dockerfile").write_text(re.sub(r"^   ", "", dockerfile, flags=re.MULTILINE))
    shutil.copy(ROOT / "examples" / "allreduce.py", folder / "code" / "train.py")
    (folder / "code" / "train.py").chmod(0o600)
    assert "\n       docker build --tag mine:1 mine\n" in PAGE
    built = docker_build("--build-arg", f"STACK={image}", "--tag", tag, str(folder))
    assert built.returncode == 0, built.stderr
    yield tag
    docker.remove_image(tag)


def docker_build(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["docker", "build", *arguments], input=stdin, capture_output=True, text=True, check=False, timeout=600
    )


def test_debian_packages_and_code_are_added_as_root_for_the_images_user(own: str) -> None:
    found = works(containers.run(own, "sh", "-c", USER_AND_FILES)).splitlines()
    assert found[0] == "1000"
    assert found[1].startswith("jq-")
    assert found[2] == "root 644"


def test_two_nodes_run_code_of_the_users_own_image(own: str) -> None:
    done = inv("up", f"--image={own}", "--nodes=2", "--name=own-image", "--", "run", "/opt/code/train.py")
    assert works(done).count("the sum is 3") == 2, done.stderr
    assert "ccl" in done.stdout


@pytest.mark.parametrize(("command", "code"), [("apt-get update", 100), ("pip install einops", 1)])
def test_what_fails_without_root_or_pip_has_the_documented_exit_code(image: str, command: str, code: int) -> None:
    done = docker_build("-", stdin=f"FROM {image}\nRUN {command}\n")
    assert f"exit code: {code}" in done.stderr
    assert re.search(rf"{command.split()[0]}.*exit code {code}", PAGE), PAGE
