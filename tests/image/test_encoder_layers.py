"""The parts of encoder layers that this project computes, against double precision."""

import re
from pathlib import Path

import pytest

from tests.containers import RunInImage
from tests.image.train_runs import ONE_THREAD

SCRIPTS = Path(__file__).with_name("scripts")
SCRIPT = "encoder_layers.py"


@pytest.mark.skipif(
    "avx512vl" not in Path("/proc/cpuinfo").read_text(), reason="this CPU has no AVX-512: the kernels do not run"
)
def test_values_and_gradients_are_those_of_the_formulas(run_in_image: RunInImage) -> None:
    done = run_in_image(
        "run", "--quiet", f"/s/{SCRIPT}", env=ONE_THREAD, docker_args=("--volume", f"{SCRIPTS}:/s:ro")
    )
    assert done.returncode == 0, done.stderr
    scripts = "".join((SCRIPTS / name).read_text() for name in (SCRIPT, "encoder_models.py"))
    checks = set(re.findall(r"^def (\w+)\(\) -> None:$", scripts, re.MULTILINE)) - {"main"}
    assert sorted(re.findall("^[a-z_]+$", done.stdout, re.MULTILINE)) == sorted(checks)
    assert "changed: encoder-layers\n" in done.stdout


def test_its_name_turns_it_off(run_in_image: RunInImage) -> None:
    done = run_in_image(
        *("run", "--quiet", "--no-adapt", "encoder-layers", f"/s/{SCRIPT}", "changed"),
        env=ONE_THREAD,
        docker_args=("--volume", f"{SCRIPTS}:/s:ro"),
    )
    assert (done.returncode, done.stdout.strip()) == (0, "changed:"), done.stderr
