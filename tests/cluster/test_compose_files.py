"""The files in compose/ with plain docker compose: the default command, more nodes, and rank 0's exit code."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests import containers
from tests.image.train_runs import reviews
from tooling.basis.paths import COMPOSE
from tooling.cluster.compose import LAUNCHERS

Up = Callable[..., tuple[int, str]]


def compose(
    launcher: str, project: str, *arguments: str, variables: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    argv = ["docker", "compose", f"--project-name={project}", f"--file={COMPOSE / launcher}.yaml", *arguments]
    return subprocess.run(
        argv, capture_output=True, text=True, timeout=300, check=False, env={**os.environ, **variables}
    )


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize(
    "variables",
    [{}, {"WORKERS": "3", "CPUS": "1.5", "OUTPUT": "/tmp", "DATA": "/tmp", "COMMAND": "run '$x y'"}],
    ids=["defaults", "every variable"],
)
def test_compose_reads_the_file_without_a_warning(launcher: str, variables: dict[str, str]) -> None:
    done = compose(launcher, "read", "config", variables=variables)
    assert (done.returncode, done.stderr) == (0, "")
    assert ("replicas: 3" in done.stdout) is bool(variables)


@pytest.fixture(params=LAUNCHERS)
def up(request: pytest.FixtureRequest, image: str, tmp_path: Path) -> Iterator[Up]:
    """Starts the cluster with variables, and returns the exit code and the output."""
    project, name = containers.unique_name(), request.param
    tmp_path.chmod(0o755)
    fixed = {"IMAGE": image, "DATA": str(tmp_path)}

    def start(**variables: str) -> tuple[int, str]:
        done = compose(name, project, "up", "--exit-code-from=node-0", variables=fixed | variables)
        return done.returncode, done.stdout + done.stderr

    yield start
    down = compose(name, project, "down", "--volumes", variables=fixed)
    assert down.returncode == 0, down.stderr


def test_the_default_command_trains_two_ranks_over_ccl(
    up: Up, tiny_model: Path, tmp_path: Path, output_folder: Path
) -> None:
    """With small files in the place of those of `./inv demo`."""
    (tmp_path / "demo" / "data").mkdir(parents=True)
    (tmp_path / "demo" / "data" / "train.csv").write_text(reviews(640))
    (tmp_path / "demo" / "data" / "test.csv").write_text(reviews(16))
    shutil.copytree(tiny_model, tmp_path / "models" / "all-MiniLM-L6-v2")
    code, output = up(OUTPUT=str(output_folder), CPUS="1")
    assert code == 0, output
    result = json.loads((output_folder / "result.json").read_text(encoding="utf-8"))
    assert (result["world_size"], result["nodes"], result["backend"], result["bf16"]) == (2, 2, "ccl", True)
    assert result["train_loss_last"] < result["train_loss_first"]


FAIL = """
import sys, torch, torch.distributed as dist
dist.all_reduce(torch.ones(1))
sys.exit(7 * dist.get_rank())
"""


def test_a_rank_that_fails_on_a_worker_fails_the_job(up: Up, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(FAIL)
    code, output = up(COMMAND="run /data/script.py", CPUS="1")
    assert code == 7, output


SCRIPT = """
import os, sys, time, torch, torch.distributed as dist
total = torch.ones(1)
dist.all_reduce(total)
print("ROW", dist.get_rank(), int(total), os.getuid(), sys.argv[1:], flush=True)
if dist.get_rank() == 0:
    time.sleep(3)  # the other ranks have ended
    print("rank 0 has ended", flush=True)
    sys.exit(int(sys.argv[1]))
"""


def test_more_nodes_end_with_the_code_of_rank_0_for_any_user(up: Up, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    words = "run /data/script.py 3 'a  b' $HOME"
    code, output = up(COMMAND=words, WORKERS="2", CPUS="1", CONTAINER_USER="1234:1234")
    assert code == 3, output
    rows = sorted(text.partition("ROW ")[2] for text in output.splitlines() if "ROW " in text)
    assert rows == [f"{rank} 3 1234 ['3', 'a  b', '$HOME']" for rank in range(3)], output
    assert "rank 0 has ended" in output
