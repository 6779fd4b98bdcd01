"""The lines of the published guides, as they stand, in the image: guides.toml."""

import tomllib
from typing import Any

import pytest

from tests.containers import RunInImage
from tooling.basis.paths import ROOT

ROWS: list[dict[str, Any]] = tomllib.loads((ROOT / "tests/image/guides.toml").read_text(encoding="utf-8"))["row"]
QA = (
    "--model_name_or_path google-bert/bert-base-uncased --dataset_name squad --do_train --max_steps 1 "
    "--report_to none --per_device_train_batch_size 2 --learning_rate 3e-5 --max_seq_length 384 "
    "--doc_stride 128 --output_dir /tmp/out"
)


@pytest.mark.parametrize(
    "row", [row for row in ROWS if "script" in row], ids=lambda row: row["line"].split("`")[1][:40]
)
def test_a_line_of_a_guide_does_what_the_recipes_say(run_in_image: RunInImage, row: dict[str, Any]) -> None:
    folder = f"--volume={ROOT}/tests/image/scripts/guides:/guide:ro"
    script = row["script"].replace("{qa}", QA)
    options = [folder, "--workdir=/guide", "--shm-size=1g"]
    done = run_in_image("bash", "-c", script, env={"HF_HUB_OFFLINE": "1"}, docker_args=options)
    output = f"{done.stdout}\n{done.stderr}"
    assert done.returncode == row.get("code", 0), output
    for text in row["prints"]:
        assert text in output, output
    for text in row.get("silent", []):
        assert text not in output, output


def test_the_other_lines_are_tested_elsewhere() -> None:
    for row in ROWS:
        assert ("script" in row) != ("tested" in row), row
        assert (ROOT / row.get("tested", "tests")).exists(), row
