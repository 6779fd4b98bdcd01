"""The lines of the published guides, as they stand, in the image: guides.toml."""

import ast
import json
import tomllib
from collections import Counter
from typing import Any

import pytest

from tests import containers
from tests.containers import works
from tooling.basis.paths import ROOT

GUIDES = tomllib.loads((ROOT / "tests/image/guides.toml").read_text(encoding="utf-8"))
ROWS: list[dict[str, Any]] = GUIDES["row"]
QA = (
    "--model_name_or_path google-bert/bert-base-uncased --dataset_name squad --do_train --do_eval --max_steps 1 "
    "--report_to none --per_device_train_batch_size 2 --learning_rate 3e-5 --max_seq_length 384 "
    "--doc_stride 128 --output_dir /tmp/out"
)
GLUE = (
    "--model_name_or_path distilbert-base-uncased --task_name mrpc --do_train --do_eval --max_seq_length 128 "
    "--per_device_train_batch_size 32 --learning_rate 2e-5 --max_steps 1 --output_dir /tmp/mrpc --report_to none"
)
# The rows of each guide, and of guides with newer lines.
LINES = {"000": 5, "001": 17, "002": 15, "003": 15, "004": 17, "others": 7}
Outcomes = dict[str, tuple[int, str]]


def script_of(row: dict[str, Any]) -> str:
    script: str = row.get("script") or GUIDES["jobs"][row["job"]]
    return script.replace("{qa}", QA).replace("{glue}", GLUE)


@pytest.fixture(scope="module")
def outcomes(image: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """The exit code and the output of the scripts of the selected rows, run once and in one container."""
    calls = (getattr(item, "callspec", None) for item in request.session.items if item.path == request.path)
    scripts = list(dict.fromkeys(script_of(call.params["row"]) for call in calls if call is not None))
    folder = tmp_path_factory.mktemp("guides")
    folder.chmod(0o755)
    (folder / "scripts.json").write_text(json.dumps(scripts))
    mounts = (f"--volume={ROOT}/tests/image/scripts/guides:/guide:ro", f"--volume={folder}:/scripts:ro")
    done = containers.run(
        image,
        *("python", "/guide/lines.py", "/scripts/scripts.json"),
        env={"HF_HUB_OFFLINE": "1"},
        docker_args=[*mounts, "--workdir=/guide", "--shm-size=1g"],
        timeout=900,
    )
    return dict(zip(scripts, json.loads(works(done)), strict=True))


@pytest.mark.parametrize(
    "row", [row for row in ROWS if "tested" not in row], ids=lambda row: row["line"].split("`")[1][:40]
)
def test_a_line_of_a_guide_does_what_the_recipes_say(outcomes: Outcomes, row: dict[str, Any]) -> None:
    code, output = outcomes[script_of(row)]
    assert code == row.get("code", 0), output
    for text in row["prints"]:
        assert text in output, output
    for text in row.get("silent", []):
        assert text not in output, output


def test_each_guide_has_its_rows_and_the_other_lines_are_tested_elsewhere() -> None:
    assert Counter(guide for row in ROWS for guide in row.get("guides", ["others"])) == LINES
    assert {row["job"] for row in ROWS if "job" in row} == set(GUIDES["jobs"])
    for row in ROWS:
        assert sum(key in row for key in ("script", "job", "tested")) == 1, row
        if "tested" in row:
            file, _, name = row["tested"].partition("::")
            tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
            assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, row
