"""Fixtures that tests/image and tests/cluster share. tests/unit uses none of them: it runs without Docker."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cpu_train_stack.cli.files import locked
from cpu_train_stack.cli.say import say
from tests import containers
from tests.image.train_runs import CONTEXT, reviews
from tooling.checks import modelled
from tooling.cluster import pretrained
from tooling.engine import api
from tooling.image import build
from tooling.pins import parse


@pytest.fixture(scope="session")
def image() -> Iterator[str]:
    """The tag of the default pin's image, built if it is not up to date, or the image that CTS_IMAGE names."""
    api.ensure()
    yield os.environ.get("CTS_IMAGE") or build.build(parse.load().pin()).tag
    left = containers.left_behind()
    assert not left, f"the tests left containers or networks behind: {', '.join(left)}"


@pytest.fixture(scope="session")
def model_folder() -> Path:
    """The host's folder of all-MiniLM-L6-v2: config.json, model.safetensors and the tokenizer's files."""
    return pretrained.minilm()


@pytest.fixture(scope="session")
def tiny_model(image: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random BERT of two layers and its tokenizer, for tests to copy or to mount read-only."""

    def make(folder: Path) -> None:
        scripts = Path(__file__).parent / "image"
        volumes = (f"--volume={folder}:/models", f"--volume={scripts}:/tests:ro")
        text = reviews(8).replace(",", " ") + CONTEXT + " where"
        argv = ("python", "/tests/tiny_model.py", "/models/tiny", text)
        containers.works(containers.run(image, *argv, docker_args=volumes))

    return _made_once(tmp_path_factory, "models", make) / "tiny"


@pytest.fixture(scope="session")
def amx_model(image: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library of kernels with a model of AMX's instructions, which runs on CPUs without them."""
    return _compiled(tmp_path_factory, amx=True)


@pytest.fixture(scope="session")
def avx512(image: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Docker's arguments for a container with the kernels' instructions: a model of them, if the CPU has none."""
    if not modelled.lacks_avx512():
        return ()
    return modelled.mounts(_compiled(tmp_path_factory, amx=False), amx=False)


def _compiled(factory: pytest.TempPathFactory, amx: bool) -> Path:
    tag = containers.unique_name() + ":compiler"
    folder = _made_once(factory, "amx" if amx else "avx512", lambda empty: modelled.compiled(empty, tag, amx))
    return folder / modelled.LIBRARY


def _made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """A folder that the processes of pytest-xdist share. The first one calls `make` with the empty folder."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    finished = folder.with_suffix(".finished")
    with locked(folder.with_suffix(".lock"), lambda: say(f"another process makes {name}")):
        if not finished.exists():
            folder.mkdir(exist_ok=True)
            folder.chmod(0o777)
            make(folder)
            finished.touch()
    return folder


@pytest.fixture
def output_folder(tmp_path: Path) -> Path:
    """A folder of the host that the image's user, uid 1000, can write into when it is mounted."""
    folder = tmp_path / "output"
    folder.mkdir()
    folder.chmod(0o777)
    return folder
