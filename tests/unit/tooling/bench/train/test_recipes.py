"""The recipes of `./inv bench train`: their commands, and their images."""

from __future__ import annotations

import pytest

from benchmarks import jobs
from tooling.bench.train import recipes, run
from tooling.bench.train.results import Runs
from tooling.engine import docker
from tooling.pins import choose, parse


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


def test_only_ours_and_ipex_start_through_this_stack() -> None:
    through = {recipe.name for recipe in recipes.ALL if recipe.command(1, ())[0] == "launch"}
    assert through == {"ours", "ours-fp32", "ipex-2.8"}


def test_the_guides_and_ipex_are_measured_without_this_stacks_parts() -> None:
    assert {recipe.name: recipe.variables for recipe in recipes.ALL if recipe.variables} == {
        "guide-fp32": ("CPU_TRAIN_STACK_TORCHRUN=plain",),
        "guide-bf16": ("CPU_TRAIN_STACK_TORCHRUN=plain",),
        "trl": ("CPU_TRAIN_STACK_TORCHRUN=plain",),
        "ipex-2.8": ("CPU_TRAIN_STACK_KERNELS=torch",),
    }


def test_chosen_names_keep_the_order_of_the_known_names() -> None:
    assert recipes.chosen("ours, guide-fp32", tuple(recipes.BY_NAME), (), "--recipe") == ("guide-fp32", "ours")
    assert recipes.chosen(None, tuple(jobs.BY_NAME), jobs.DEFAULT, "--job") == jobs.DEFAULT


def test_a_recipe_without_an_image_names_the_fix_and_has_not_failed() -> None:
    one = Runs("tiny", "ipex-2.8", 2)
    assert run._report(recipes.BY_NAME["ipex-2.8"], one, (), None, ()) is None
    assert str(one.reason).startswith("the image is missing: run ./inv build --pin 2.8, or")
    assert not one.failed


def test_trl_is_measured_in_an_image_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = parse.load().pin()
    asked: list[str] = []
    monkeypatch.setattr(docker, "find_image", asked.append)
    assert run._present(recipes.BY_NAME["guide-bf16"], measured) == measured.image
    assert run._present(recipes.BY_NAME["trl"], measured) is None
    sources = [
        choose.choose(packages=[recipes.TRL_PACKAGE], torch_source=source).image for source in ("row", "default")
    ]
    assert asked == sources
    one = Runs("smollm-sft", "trl", 2)
    assert run._report(recipes.BY_NAME["trl"], one, (), None, ()) is None
    assert str(one.reason).startswith(f"the image is missing: run ./inv build --with {recipes.TRL_PACKAGE}, or")


def test_trl_does_not_train_other_models() -> None:
    one = Runs("mrpc-guide", "trl", 2)
    assert run._report(recipes.BY_NAME["trl"], one, (), "image", ()) is None
    assert (one.reason, one.failed) == ("trl trains only language models", False)
