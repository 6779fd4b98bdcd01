"""The recipes of `./inv bench train`: their commands, and their images."""

import pytest

from benchmarks import jobs
from tooling.bench.runner import Container
from tooling.bench.train import recipes, run
from tooling.bench.train.results import Runs
from tooling.engine import docker
from tooling.engine.api import Engine
from tooling.pins import choose, parse

ENGINE = Engine("unix:///var/run/docker.sock", 2)
CONTAINER = Container(ENGINE, "sha256:1")


@pytest.mark.parametrize("recipe", recipes.ALL, ids=lambda recipe: recipe.name)
def test_every_recipe_runs_the_same_script_with_the_same_job(recipe: recipes.Recipe) -> None:
    for ranks in (1, 2):
        command = recipe.command(ranks, ("--job", "tiny"))
        if isinstance(command, str):
            assert (recipe.name, ranks) == ("run_cpu", 2)
            assert "process group" in command
            continue
        before, script, after = command[: command.index(recipes.SCRIPT)], recipes.SCRIPT, command[-5:]
        assert script in command
        assert {"--job", "tiny", "--use_cpu"} <= set(after)
        # TRL's default is bf16.
        assert ("--bf16" in after) == (not recipe.name.endswith("-fp32") and recipe.name != "trl")
        assert str(ranks) in before or recipe.name == "run_cpu"
        assert ("--mpirun_hostfile" in before) == ((recipe.name, ranks) == ("accelerate", 2))


def test_a_recipe_that_would_use_all_cpus_is_told_which() -> None:
    words = recipes.BY_NAME["run_cpu"].command(1, (), [1, 3])
    assert words[3:8] == ("--ncores-per-instance", "2", "--core-list", "1,3", recipes.SCRIPT)
    assert recipes.BY_NAME["ours"].command(1, (), [1, 3]) == recipes.BY_NAME["ours"].command(1, ())


def test_only_ours_and_ipex_start_through_this_stack() -> None:
    through = {recipe.name for recipe in recipes.ALL if recipe.command(1, ())[0] == "launch"}
    assert through == {"ours", "ours-fp32", "ipex-2.8"}


def test_the_guides_and_ipex_are_measured_without_this_stacks_parts() -> None:
    assert {recipe.name: recipe.variables for recipe in recipes.ALL if recipe.variables} == {
        "guide-fp32": {"CPU_TRAIN_STACK_TORCHRUN": "plain"},
        "guide-bf16": {"CPU_TRAIN_STACK_TORCHRUN": "plain"},
        "trl": {"CPU_TRAIN_STACK_TORCHRUN": "plain"},
        "ipex-2.8": {"CPU_TRAIN_STACK_KERNELS": "torch"},
    }


def test_chosen_names_keep_the_order_of_the_known_names() -> None:
    assert recipes.chosen("ours, guide-fp32", tuple(recipes.BY_NAME), (), "--recipe") == ("guide-fp32", "ours")
    assert recipes.chosen(None, tuple(jobs.BY_NAME), jobs.DEFAULT, "--job") == jobs.DEFAULT


@pytest.mark.parametrize(
    ("recipe", "job", "ranks", "image", "reason"),
    [
        ("ipex-2.8", "tiny", 2, None, "the image is missing: run ./inv build --pin 2.8, or"),
        (
            recipes.TRL,
            "smollm-sft",
            2,
            None,
            f"the image is missing: run ./inv build --with {recipes.TRL_PACKAGE}, or",
        ),
        (recipes.TRL, "mrpc-guide", 2, "image", "trl trains only language models"),
        ("run_cpu", "tiny", 2, "image", "run_cpu creates no process group"),
    ],
    ids=["no image of the pin", "no image with the package", "another task", "several ranks"],
)
def test_a_recipe_that_cannot_run_here_has_a_reason_and_has_not_failed(
    recipe: str, job: str, ranks: int, image: str | None, reason: str
) -> None:
    one = Runs(job, recipe, ranks)
    assert run._round([one], [recipes.BY_NAME[recipe]], (), {recipe: image}, CONTAINER) == []
    assert str(one.reason).startswith(reason)
    assert (one.reports, one.failed) == ([None], False)


def test_trl_is_measured_in_an_image_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    pin = parse.load().pin().name
    asked: list[str] = []
    monkeypatch.setattr(docker, "find_image_at", lambda _endpoint, tag: asked.append(tag))
    assert run._image(recipes.BY_NAME["guide-bf16"], ENGINE, "sha256:1", pin) == "sha256:1"
    assert run._image(recipes.BY_NAME["trl"], ENGINE, "sha256:1", pin) is None
    sources = [
        choose.choose(packages=[recipes.TRL_PACKAGE], torch_source=source).image for source in ("row", "default")
    ]
    assert asked == sources
    assert run._image(recipes.BY_NAME["trl"], ENGINE, "sha256:1", None) is None, "an image of no known row"
