"""Fixtures of the tests of one container."""

import functools
import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests import containers
from tests.containers import TIMEOUT_SECONDS, RunInImage
from tests.image.rank_scripts import SCRIPTS
from tests.image.train_runs import PARITY, reviews, squad


@pytest.fixture
def run_in_image(image: str) -> RunInImage:
    """Runs a command in a fresh container: run_in_image("python", "-c", "...", env={"A": "1"}, timeout=60)."""
    return functools.partial(containers.run, image)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """The path of a new script, in a folder that the container's user can read."""
    tmp_path.chmod(0o755)
    return tmp_path / "script.py"


@pytest.fixture(scope="session")
def train_data(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Mounted as /data: a tiny model and data files, good and bad."""
    folder = tmp_path_factory.mktemp("data")
    folder.chmod(0o777)
    shutil.copytree(tiny_model, folder / "tiny")
    files = {
        "train.csv": reviews(22),
        "eval.csv": reviews(13),
        "three.csv": reviews(3),
        "one.csv": reviews(1),
        "squad.json": json.dumps(squad()),
        "no-label.csv": "text,topic\na b,c\n",
        "empty.csv": "",
        "broken.json": '[{"text": "a", "label": 1},\n {"text": ]',
        "ragged.csv": "text,label\na,1\na,b,0\n",
        "no-text.csv": "text,label\na,1\n ,0\n",
        "numbers.jsonl": '{"text": 3, "label": 1}\n{"text": "b", "label": 0}\n',
        "other-label.csv": "text,label\na,pos\nb,maybe\n",
        "fractions.csv": "text,label\na,1\nb,0.5\nc,2.5\n",
        "broken.parquet": "PAR1 and no more",
        "wrong-key.yaml": "bf16: true\nmax_seq_lenght: 32\n",
        "wrong-value.yaml": "learning_rate: fast\n",
        "parity.yaml": "".join(f"{key}: {value}\n" for key, value in PARITY.items()),
    }
    for name, content in files.items():
        (folder / name).write_text(content)
    (folder / "no-weights").mkdir()
    shutil.copy(folder / "tiny" / "config.json", folder / "no-weights")
    shutil.copytree(folder / "tiny", folder / "cut")
    (folder / "cut" / "model.safetensors").write_bytes((folder / "tiny" / "model.safetensors").read_bytes()[:-9])
    shutil.copytree(folder / "tiny", folder / "closed")
    (folder / "closed" / "model.safetensors").chmod(0o600)
    (folder / "closed.csv").write_text(reviews(4))
    (folder / "closed.csv").chmod(0o600)
    shutil.copytree(folder / "tiny", folder / "no-tokens", ignore=shutil.ignore_patterns("tok*", "vocab*"))
    return folder


@pytest.fixture(scope="session")
def rank_scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scripts")
    folder.chmod(0o755)  # the container's user is another one
    for name, text in SCRIPTS.items():
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def run(run_in_image: RunInImage, rank_scripts: Path) -> RunInImage:
    """run_in_image with SCRIPTS in /scripts."""

    def with_scripts(
        *argv: str,
        env: Mapping[str, str] | None = None,
        docker_args: Sequence[str] = (),
        timeout: float = TIMEOUT_SECONDS,
    ) -> subprocess.CompletedProcess[str]:
        mount = ["--volume", f"{rank_scripts}:/scripts:ro", *docker_args]
        return run_in_image(*argv, env=env, docker_args=mount, timeout=timeout)

    return with_scripts
