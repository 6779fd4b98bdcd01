"""The parts of encoder, decoder and LoRA layers that this project computes, against double precision."""

import re

import pytest

from tests.containers import RunInImage
from tests.image.container_scripts import MOUNT, SCRIPTS, checks_of, printed
from tests.image.train_runs import ONE_THREAD


@pytest.mark.parametrize(("kind", "changed"), [("decoder", "decoder-layers lora"), ("encoder", "encoder-layers")])
def test_values_and_gradients_are_those_of_the_formulas(
    run_in_image: RunInImage, avx512: tuple[str, ...], kind: str, changed: str
) -> None:
    mounts = (*MOUNT, *avx512)
    done = run_in_image("run", "--quiet", f"/s/{kind}_layers.py", env=ONE_THREAD, docker_args=mounts)
    assert done.returncode == 0, done.stderr
    scripts = "".join((SCRIPTS / f"{kind}_{part}.py").read_text() for part in ("layers", "models"))
    defined = re.findall(r"^def (\w+)\([^)]*\) -> None:$", scripts, re.MULTILINE)
    checks = set(defined) - {"main", "check_sum"}
    assert sorted(re.findall("^[a-z_]+$", done.stdout, re.MULTILINE)) == sorted(checks)
    assert f"changed: {changed}\n" in done.stdout


@pytest.mark.parametrize(("kind", "names"), [("decoder", "decoder-layers,lora"), ("encoder", "encoder-layers")])
def test_names_turn_them_off(run_in_image: RunInImage, kind: str, names: str) -> None:
    command = ("run", "--quiet", "--no-adapt", names, f"/s/{kind}_layers.py", "changed")
    done = run_in_image(*command, env=ONE_THREAD, docker_args=MOUNT)
    assert (done.returncode, done.stdout.strip()) == (0, "changed:"), done.stderr


@pytest.mark.parametrize("name", ["second_derivatives", "compiled"])
def test_torch_derives_and_compiles_the_operators(
    run_in_image: RunInImage, avx512: tuple[str, ...], name: str
) -> None:
    done = run_in_image("run", "--quiet", f"/s/{name}.py", env=ONE_THREAD, docker_args=(*MOUNT, *avx512))
    assert done.returncode == 0, done.stderr
    assert [one for one in printed(done.stdout) if one.isidentifier()] == checks_of(name)
