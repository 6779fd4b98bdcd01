"""docs/notebook.md: the page's commands and cells, in the image with jupyterlab."""

import json
import os
import re
import subprocess
import time
from collections.abc import Iterator

import pytest
import requests
from requests.adapters import HTTPAdapter
from urllib3 import Retry

from tests import containers
from tests.cluster.conftest import inv
from tests.containers import works
from tooling.basis.paths import ROOT
from tooling.engine import docker
from tooling.pins import choose
from tooling.wheels import locks

pytestmark = pytest.mark.timeout(containers.BUILD_TEST_SECONDS)
PAGE = (ROOT / "docs" / "notebook.md").read_text(encoding="utf-8")
CELLS = re.findall(r"^```python\n(.*?)\n```", PAGE, flags=re.DOTALL | re.MULTILINE)
READY_SECONDS = 60


@pytest.fixture(scope="module")
def notebooks(image: str) -> Iterator[str]:
    """The image of the page's first command."""
    (command,) = re.findall(r"^ +\./inv (build --with .*)", PAGE, flags=re.MULTILINE)
    works(inv(*command.split(), timeout=containers.BUILD_SECONDS))
    pin = choose.choose(packages=[command.split()[-1]])
    yield pin.image
    docker.remove_image(pin.image)
    docker.remove_image(pin.shared_tag)
    locks.added_path_of(pin).unlink(missing_ok=True)


@pytest.fixture(scope="module")
def server(notebooks: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The container of the page's second command, with a notebook of the page's cells."""
    cells = [
        {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None, "source": cell}
        for cell in CELLS
    ]
    folder = tmp_path_factory.mktemp("notebooks")
    notebook = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 4}
    (folder / "page.ipynb").write_text(json.dumps(notebook))
    for path in (folder, folder / "page.ipynb"):
        os.chown(path, 1000, 1000)
    (command,) = re.findall(r"^ +(docker run .*)", PAGE, flags=re.MULTILINE)
    name = containers.unique_name()
    for old, new in (
        ("-it", f"--detach --name {name}"),
        ('"$(id -u):$(id -g)"', "1000:1000"),
        (":8888:8888", "::8888"),
        ("./notebooks", str(folder)),
        ("cpu-train-stack:2.13-with-…", notebooks),
    ):
        assert old in command
        command = command.replace(old, new)
    try:
        subprocess.run(["bash", "-c", command], check=True, capture_output=True, timeout=60)
        yield name
    finally:
        subprocess.run(["docker", "rm", "--force", name], check=False, capture_output=True, timeout=60)


def printed(*command: str, timeout: float = 60) -> str:
    done = subprocess.run(["docker", *command], capture_output=True, text=True, check=False, timeout=timeout)
    return works(done) + done.stderr


def test_the_server_needs_its_token_and_listens_on_loopback(server: str) -> None:
    end = time.monotonic() + READY_SECONDS
    while not (tokens := re.findall(r"http://127.0.0.1:8888/lab\?token=(\w+)", printed("logs", server))):
        assert time.monotonic() < end, printed("logs", server)
        time.sleep(0.5)
    address = printed("port", server, "8888/tcp").strip()
    assert re.fullmatch(r"127\.0\.0\.1:\d+", address)
    contents = f"http://{address}/api/contents"
    with requests.Session() as session:  # a busy machine's server may print its address before it answers
        session.mount("http://", HTTPAdapter(max_retries=Retry(10, backoff_factor=0.1)))
        assert session.get(contents, timeout=READY_SECONDS).status_code == 403
        assert "page.ipynb" in session.get(contents, params={"token": tokens[0]}, timeout=READY_SECONDS).text


def test_the_pages_cells_train_two_ranks_on_ccl_and_with_notebook_launcher(server: str) -> None:
    printed("exec", server, "jupyter", "execute", "--inplace", "page.ipynb", timeout=300)
    notebook = json.loads(printed("exec", server, "cat", "page.ipynb"))
    outputs = [
        "".join(text for output in cell["outputs"] for text in output.get("text", []))
        for cell in notebook["cells"]
    ]
    assert len(outputs) == 3
    for output, backend in ((outputs[1], "ccl"), (outputs[2], "gloo")):
        (loss,) = re.findall(rf"2 ranks, {backend}, loss (\S+)", output)
        assert float(loss) < 0.5
    assert "compute thread" in outputs[1]
