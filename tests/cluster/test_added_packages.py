"""An image with a user's own packages, from the command line to TRL's own scripts on two containers over ccl."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests import containers
from tests.cluster.conftest import inv
from tests.containers import works
from tests.unit.tooling.tiny import make_wheel
from tooling.bench import runner
from tooling.bench.train import recipes
from tooling.engine import api, docker
from tooling.image import build, recipe, reproduce
from tooling.pins import choose
from tooling.pins.pin import Pin
from tooling.wheels import locks

TRL = "trl==1.16.0"
BITSANDBYTES = "bitsandbytes==0.50.2"
pytestmark = pytest.mark.timeout(containers.BUILD_TEST_SECONDS)
IMAGE_TESTS = Path(__file__).parents[1] / "image"
TRAIN = [
    "--model_name_or_path=/data/model",
    "--output_dir=/output/job",
    "--max_steps=4",
    "--per_device_train_batch_size=2",
    "--logging_steps=1",
    "--save_strategy=no",
    "--report_to=none",
    "--bf16=false",
    "--max_length=64",
]


@pytest.fixture(scope="module")
def own(image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Pin, list[str], str]]:
    """The pin, the options and the output of `./inv build` with TRL, bitsandbytes and a wheel of ours."""
    # One of its files is also in the row: the row's stays.
    wheel = make_wheel(tmp_path_factory.mktemp("wheels"), "torch_helper", "1.0", payload=b"ours")
    packages = [TRL, BITSANDBYTES, str(wheel)]
    options = [f"--with={package}" for package in packages]
    done = inv("build", *options, timeout=containers.BUILD_SECONDS)
    pin = choose.choose(packages=packages)
    yield pin, options, works(done) + done.stderr
    docker.remove_image(pin.image)
    docker.remove_image(pin.shared_tag)
    locks.added_path_of(pin).unlink(missing_ok=True)


def test_the_packages_are_a_layer_on_top_of_the_rows_layers(own: tuple[Pin, list[str], str], image: str) -> None:
    pin, options, said = own
    (adding,) = re.findall("adding (.*)", said)
    assert sorted(adding.split(", ")) == ["bitsandbytes 0.50.2", "torch-helper 1.0", "trl 1.16.0"]
    row, added = docker.read_image(image), docker.read_image(pin.image)
    assert added.layers[:-1] == row.layers
    assert added.labels[recipe.ADDED_LABEL] == "bitsandbytes torch-helper trl"
    assert json.loads(added.labels["cpu-train-stack.versions"])["trl"] == "1.16.0"
    again = inv("build", *options)
    assert "up to date" in works(again) + again.stderr
    assert "resolving" not in again.stderr


def test_the_image_runs_the_packages_and_its_doctor_checks_them(own: tuple[Pin, list[str], str]) -> None:
    pin, _, _ = own
    code = "import trl, torch_helper, sys; print(trl.__version__, torch_helper.__file__, trl.__file__)"
    site = "/opt/venv/lib/python3.11/site-packages"
    printed = works(containers.run(pin.image, "python", "-c", code))
    assert printed.split() == ["1.16.0", f"{site}/torch_helper/__init__.py", f"{site}/trl/__init__.py"]
    assert "usage: trl" in works(containers.run(pin.image, "trl", "--help", timeout=120))
    (versions,) = [
        check
        for check in json.loads(containers.run(pin.image, "doctor", "--json", timeout=300).stdout)["checks"]
        if check["name"] == "versions"
    ]
    rows = len(locks.read(pin)) + 3
    assert versions["status"] == "ok"
    assert f"pin {pin.name}: all {rows} packages match the lock file" in versions["detail"]


def test_the_layer_is_reproducible_and_in_the_bill_of_materials(
    own: tuple[Pin, list[str], str], tmp_path: Path
) -> None:
    pin, options, _ = own
    tag = f"{pin.image}-again"
    try:
        build.rebuild(pin, tag, "--no-cache-filter=installed-added,added")
        assert reproduce.difference(pin.image, tag) is None
    finally:
        docker.remove_image(tag)
    bill = tmp_path / "image.spdx.json"
    works(inv("sbom", *options, f"--output={bill}"))
    named = {package["name"] for package in json.loads(bill.read_text())["packages"]}
    assert {"trl", "torch-helper", "torch"} <= named


def test_a_conflict_is_one_line_before_anything_is_built(image: str) -> None:
    done = inv("up", "--name=conflict", "--nodes=1", "--with=trl==0.9.6", "--", "python", "-c", "")
    assert done.returncode == 2
    error = done.stderr.splitlines()[-1]
    assert "pin 2.13 has numpy" in error
    assert "trl 0.9.6 depends on numpy<2.0.0" in error
    assert "Traceback" not in done.stderr


@pytest.fixture(scope="module")
def data(image: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny decoder, and conversations and preferences in the form that TRL's scripts load from a folder."""
    folder = tmp_path_factory.mktemp("trl")
    folder.chmod(0o777)
    names = ["ada", "ben", "cleo", "dan"] * 4
    for kind in ("sft", "dpo"):
        (folder / kind).mkdir()
    asked = [{"role": "user", "content": "where?"}]
    chats = [{"messages": [*asked, {"role": "assistant", "content": f"{name} is in rome."}]} for name in names]
    pairs = [
        {
            "prompt": asked,
            "chosen": [{"role": "assistant", "content": f"{name} is in rome."}],
            "rejected": [{"role": "assistant", "content": f"{name}? no idea."}],
        }
        for name in names
    ]
    (folder / "sft" / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in chats))
    (folder / "dpo" / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in pairs))
    volumes = (f"--volume={folder}:/models", f"--volume={IMAGE_TESTS}:/tests:ro")
    argv = ("python", "/tests/tiny_model.py", "/models/bert", "where is ada in rome", "/models/model")
    works(containers.run(image, *argv, docker_args=volumes))
    return folder


@pytest.mark.parametrize("kind", ["sft", "dpo"])
def test_trls_own_script_trains_on_two_containers_over_ccl(
    own: tuple[Pin, list[str], str], data: Path, output_folder: Path, kind: str
) -> None:
    _, options, _ = own
    done = inv(
        *("up", f"--name=trl-{kind}", "--nodes=2", *options, f"--data={data}", f"--output={output_folder}", "--"),
        *("run", "-m", f"trl.scripts.{kind}", f"--dataset_name=/data/{kind}", *TRAIN),
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    assert re.search(r"ranks +2 on 2 nodes", output), output
    assert re.search(r"group +ccl", output), output
    losses = [float(found) for found in re.findall(r"'loss': '?([\d.]+)", output)]
    assert len(losses) >= 4, output
    assert (output_folder / "job" / "model.safetensors").is_file()


# With this budget, the number of warm-up steps does not depend on the speed of the machine.
STEPS = ("--steps=3", "--seconds=1000")


def test_bench_train_measures_trls_trainer_on_the_rows_of_the_guide(own: tuple[Pin, list[str], str]) -> None:
    pin, _, _ = own
    reports = []
    for name in (recipes.TRL, recipes.BF16):
        command = recipes.BY_NAME[name].command(1, ("--output_dir=/tmp/out", "--job=tiny-lora", *STEPS))
        assert not isinstance(command, str)
        container = runner.container(api.ensure(), pin.image, "0-1")
        container = replace(container, variables={**container.variables, **recipes.PLAIN})
        reports.append(runner.run(container, command, f"test-{name}"))
    trl, guide = reports
    assert [(report["steps"], report["warm_up"]) for report in reports] == [(3, 5), (3, 5)]
    assert trl["tokens_labelled"] > 0
    assert [trl[key] for key in ("tokens_useful", "tokens_labelled")] == [
        guide[key] for key in ("tokens_useful", "tokens_labelled")
    ]


FOUR_BITS = """set -e
entrypoint launch --nproc-per-node 2 -- train --model_name_or_path /models/model --output_dir /models/four_bits \
    --train_file /models/sft/train.jsonl --validation_file /models/sft/train.jsonl --load_in_4bit --use_peft \
    --lora_target_modules q_proj,v_proj,up_proj --bf16 --eval_on_start --max_seq_length 64 --max_steps 4 \
    --learning_rate 0.02 --save_strategy no
entrypoint run /tests/scripts/four_bits.py /models/model /models/four_bits
"""


def test_two_ranks_train_an_adapter_over_weights_in_4_bits(own: tuple[Pin, list[str], str], data: Path) -> None:
    """The evaluation before the first step makes bitsandbytes rearrange weights, if nothing prevents that."""
    pin, _, _ = own
    volumes = (f"--volume={data}:/models", f"--volume={IMAGE_TESTS}:/tests:ro")
    done = containers.run(pin.image, "bash", "-c", FOUR_BITS, docker_args=("--shm-size=1g", *volumes))
    printed = works(done)
    result = json.loads((data / "four_bits" / "result.json").read_text())
    assert result["world_size"] == 2
    assert result["metrics"]["eval_loss"] < result["losses"][0] - 0.2
    assert f"loaded {result['adapter']['trainable_parameters']}" in printed
    assert "computes padding" not in done.stderr
    assert "kernels-community" not in done.stderr
