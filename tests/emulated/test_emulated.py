"""The image on an emulated Sapphire Rapids: AMX is found and used, and its results are those of other CPUs."""

import json
import re
import shutil
from pathlib import Path

import pytest

from tests import containers
from tests.emulated.conftest import LIMIT_SECONDS, Emulate
from tests.image.container_scripts import SCRIPTS as IMAGE_SCRIPTS
from tests.image.container_scripts import checks_of, printed
from tests.image.train_runs import reviews
from tooling.basis.paths import ROOT

SCRIPTS = Path(__file__).with_name("scripts")
pytestmark = pytest.mark.timeout(LIMIT_SECONDS)
ISA = "ONEDNN_MAX_CPU_ISA"
# The values of ISA for each path of the kernels.
PATHS = ("AVX512_CORE", "AVX512_CORE_BF16", "AVX512_CORE_AMX")
TRAIN = (
    "entrypoint train --model_name_or_path /data/tiny --train_file /data/train.csv --bf16 --max_steps 2 "
    "--logging_steps 1 --per_device_train_batch_size 4 --report_to none --output_dir /tmp/out-$ISA"
)
# Of a loss. bfloat16 has eight bits; a loss is a mean over several words and rows.
ROUNDED = 2**-8


def test_amx_is_found_and_the_exit_code_is_the_commands(emulate: Emulate) -> None:
    """And where arch_prctl refuses AMX, `doctor` says so. The number of instructions is the last line."""
    doctor = "entrypoint doctor --quick --json"
    script = f"entrypoint plan --json; {doctor}; python /data/without_amx.py {doctor}; exit 7"
    done = emulate("bash", "-c", script, data=SCRIPTS)
    assert done.returncode == 7, done.stderr
    assert re.fullmatch(r"the command took [1-9]\d+ million instructions", done.stderr.splitlines()[-1])
    plan, *reports = (json.loads(text) for text in re.split(r"\n(?=\{\n)", done.stdout.strip()))
    assert plan["bf16"] == "amx_bf16"
    found, refused = ({check["name"]: check for check in report["checks"]} for report in reports)
    assert "amx_bf16" in found["CPU"]["detail"]
    assert "AMX" not in found
    assert refused["AMX"]["status"] == "warning"
    assert "arch_prctl refuses AMX to this process (EPERM)" in refused["AMX"]["detail"]


@pytest.mark.parametrize("name", ["attention_bf16", "attention_joined"])
def test_every_check_of_the_kernel_passes(emulate: Emulate, name: str) -> None:
    done = emulate("run", f"/data/{name}.py", data=IMAGE_SCRIPTS)
    assert done.returncode == 0, done.stderr
    assert printed(done.stdout) == checks_of(name)


def test_tiles_give_the_bits_of_the_model(emulate: Emulate, amx_model: Path, tmp_path: Path) -> None:
    """For every shape of these checks, and for rows that are end to end."""
    data = shutil.copytree(IMAGE_SCRIPTS, tmp_path / "data")
    shutil.copy(amx_model, data)
    done = emulate("run", "/data/attention_tiles.py", f"/data/{amx_model.name}", data=data)
    assert done.returncode == 0, done.stderr
    assert printed(done.stdout) == checks_of("attention_tiles")


def test_attention_with_tiles_needs_fewest_instructions(emulate: Emulate) -> None:
    """And at most half as many as with AVX512-BF16 from 384 tokens on."""
    done = emulate("run", "/data/attention_instructions.py", data=SCRIPTS)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(rows) == 16, done.stderr
    for row in rows:
        assert row["amx"] < min(row["avx512"], row["torch"]), row
        assert row["tokens"] < 384 or 2 * row["amx"] <= row["avx512"], row


def test_training_has_the_same_losses_on_each_path(
    emulate: Emulate, image: str, tiny_model: Path, tmp_path: Path
) -> None:
    """With AMX, AVX512-BF16 and neither, on the emulated machine and on this one."""
    tmp_path.chmod(0o755)
    shutil.copytree(tiny_model, tmp_path / "tiny")
    (tmp_path / "train.csv").write_text(reviews(8))
    script = f"for ISA in {' '.join(PATHS)}; do {ISA}=$ISA {TRAIN} >&2 && cat /tmp/out-$ISA/result.json; done"
    there = emulate("bash", "-c", script, data=tmp_path)
    assert there.returncode == 0, there.stderr
    here = containers.run(image, "bash", "-c", script, docker_args=("--volume", f"{tmp_path}:/data:ro"))
    emulated, real = (losses(text) for text in (there.stdout, here.stdout))
    assert len(emulated) == len(PATHS), there.stderr
    for found in (*emulated, *real):
        assert found == pytest.approx(emulated[0], rel=ROUNDED)


def losses(text: str) -> list[list[float]]:
    """The losses of the result.json files that follow one another."""
    found = []
    while text.strip():
        document, end = json.JSONDecoder().raw_decode(text.strip())
        found.append(document["losses"])
        text = text.strip()[end:]
    return found


def test_two_ranks_sum_in_bf16(emulate: Emulate) -> None:
    """Every collective of ccl, with the same rounding as torch."""
    command = ("launch", "--nproc-per-node=2", "--", "run", "--backend=ccl", "/data/collectives.py")
    done = emulate(*command, data=ROOT / "bindings" / "tests")
    assert done.returncode == 0, done.stderr


def test_the_doctors_ranks_use_amx(emulate: Emulate) -> None:
    done = emulate("doctor", "--json")
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert "amx" in checks["bf16"]["detail"]
    for backend in ("gloo", "ccl"):
        assert checks[f"allreduce {backend}"]["status"] == "ok", checks
