"""Adaptations without torch and transformers: old flags, hooks, names, and when they apply."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from cpu_train_stack import catalogue, contract
from cpu_train_stack.adapt.adaptation import Situation
from cpu_train_stack.cli import import_hooks
from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.packages import release
from cpu_train_stack.compat import flags, rewriting, trainer_names
from tests.unit.entrypoints.test_dispatch import entrypoint, one_error_line

FLAGS = {flag.name: flag for flag in flags.FLAGS}
NEWEST = {"transformers": "5.23.0", "accelerate": "1.15.0", "torch": "2.13.0+cpu", "evaluate": "0.4.6"}
OF_2_8 = {"transformers": "4.55.4", "accelerate": "1.10.1", "torch": "2.8.0+cpu", "evaluate": "0.4.5"}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("--no_cuda --bf16", "--use_cpu=true --bf16"),
        ("--no-cuda=False", "--use_cpu=False"),
        ("--use_ipex --lr 1", "--lr 1"),
        ("--use_ipex True --lr 1", "--lr 1"),
        ("--xpu_backend ccl --lr 1", "--lr 1"),
        ("--xpu_backend=ccl", ""),
        ("--ddp_backend ccl --ddp_backend=ccl --lr 1", "--lr 1"),
        ("--ddp_backend gloo --lr 1", "--ddp_backend gloo --lr 1"),
        ("--ddp_backend=nccl --ddp_backend", "--ddp_backend"),
        ("--evaluation_strategy epoch", "--eval_strategy=epoch"),
        ("--group_by_length", "--train_sampling_strategy=group_by_length"),
        ("--group_by_length false", "--train_sampling_strategy=random"),
        ("--adafactor", "--optim=adafactor"),
        ("--adafactor False", "--optim=adamw_torch"),
        ("--warmup_ratio 0.1", "--warmup_steps=0.1"),
        ("--warmup_ratio 0.1 --warmup_steps 0 --lr 1", "--warmup_steps 0 --lr 1 --warmup_steps=0.1"),
        ("--warmup_steps 500 --warmup_ratio 0.0", "--warmup_steps 500"),
        ("--evaluation_strategy steps --eval_strategy no", "--eval_strategy no"),
        ("--warmup_ratio=0.1 --warmup-steps=500", "--warmup-steps=500"),
        ("--no_save_safetensors --lr 1", "--lr 1"),
        ("--no-save-safetensors --no_bf16 x", "--no_bf16 x"),
        ("--output_dir --no_such -5", "--output_dir --no_such -5"),
    ],
)
def test_old_flags_are_replaced_or_dropped_and_nothing_else_changes(given: str, expected: str) -> None:
    assert rewriting.rewrite(given.split(), FLAGS)[0] == expected.split()


def test_an_old_flag_beside_its_replacement_is_reported_as_dropped() -> None:
    line = "--warmup_ratio is dropped: --warmup_steps is given"
    argv = ["--warmup_steps", "500", "--warmup_ratio", "0.1"]
    assert [item.flag.line for item in rewriting.rewrite(argv, FLAGS)[1]] == [line]
    fields = {"warmup_steps": 500, "warmup_ratio": 0.1}
    assert [item.flag.line for item in rewriting.rewrite_fields(fields, FLAGS)[1]] == [line]


def test_only_active_flags_are_changed_and_those_found_are_returned() -> None:
    kept, found = rewriting.rewrite(["--no_cuda", "--use_ipex", "0"], {"use_ipex": FLAGS["use_ipex"]})
    assert kept == ["--no_cuda"]
    assert [(item.flag.name, item.is_true) for item in found] == [("use_ipex", False)]


def test_fields_of_a_file_are_rewritten_unless_the_new_name_is_given_too() -> None:
    values = {"evaluation_strategy": "no", "eval_strategy": "steps", "use_ipex": True, "seed": 1}
    kept, found = rewriting.rewrite_fields(values, FLAGS)
    assert kept == {"eval_strategy": "steps", "seed": 1}
    assert [item.flag.name for item in found] == ["evaluation_strategy", "use_ipex"]


def test_warmup_steps_of_zero_leave_the_warmup_to_its_ratio_as_in_transformers_4() -> None:
    for steps, ratio, expected in (
        (0, 0.1, 0.1),
        (500, 0.1, 500),
        (500, 0.0, 500),
        (0.0, 0.1, 0.1),
        (None, 0.1, 0.1),
    ):
        kept, _ = rewriting.rewrite_fields({"warmup_steps": steps, "warmup_ratio": ratio}, FLAGS)
        assert kept == {"warmup_steps": expected}


@pytest.mark.parametrize("text", ["many", "", "-1", "\u0663", "9" * 5000, "nan", "1.5"])
def test_a_number_of_an_old_flag_that_means_nothing_is_one_line(text: str) -> None:
    for name in ("warmup_ratio", "fsdp_min_num_params"):
        with pytest.raises(UsageError, match=rf"^--{name} .*: expected a number.*$"):
            rewriting.rewrite([f"--{name}={text}"], FLAGS)


def test_no_replacement_is_an_old_flag() -> None:
    some_values = {"optim", "report_to"}
    assert not {flag.now for flag in flags.FLAGS} & set(FLAGS) - some_values


def test_a_hook_runs_when_the_module_is_imported_and_not_when_its_spec_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hooked_module.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    seen: list[int] = []

    def hook(module: Any) -> None:
        seen.append(module.value)
        module.value = 2

    import_hooks.after_import("hooked_module", hook)
    try:
        assert importlib.util.find_spec("hooked_module") is not None
        assert seen == []
        module: Any = importlib.import_module("hooked_module")
        assert (seen, module.value) == ([1], 2)
        assert module.__spec__.loader.get_source("hooked_module") == "value = 1\n"
        import_hooks.after_import("hooked_module", hook)  # imported already
        assert seen == [1, 2]
    finally:
        sys.modules.pop("hooked_module", None)


def test_a_hook_of_a_pattern_runs_for_each_module_with_such_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [
        f"hooked_models.{name}.{kind}_{name}" for name in ("first", "second") for kind in ("modeling", "other")
    ]
    for name in names:
        path = tmp_path / f"{name.replace('.', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    seen: list[str] = []
    importlib.import_module(names[0])
    import_hooks.after_import("hooked_models.*.modeling_*", lambda module: seen.append(module.__name__))
    try:
        assert seen == names[:1]  # imported already
        for name in names:
            importlib.import_module(name)
        assert seen == [names[0], names[2]]
    finally:
        for name in [name for name in sys.modules if name.startswith("hooked_models")]:
            del sys.modules[name]


def test_a_hook_of_a_missing_module_changes_nothing() -> None:
    import_hooks.after_import("no_such_module_to_hook", print)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("no_such_module_to_hook")


def verdicts(arguments: str, versions: dict[str, str]) -> dict[str, bool]:
    situation = Situation(arguments.split(), versions, "ccl")
    return {one.name: one.check(situation).applies for one in catalogue.ALL}


def test_versions_and_the_command_line_decide_which_adaptations_apply() -> None:
    old = "--no_cuda --ddp_backend ccl --use_ipex --xpu_backend ccl --overwrite_output_dir"
    names = ("no-cuda", "ddp-backend", "use-ipex", "xpu-backend", "overwrite-output-dir")
    newest = verdicts(old, NEWEST)
    assert all(newest[name] for name in names)
    assert all(newest[name] for name in ("telemetry", "offline-mode", "process-group", "loss-scale"))
    assert not newest["use-cpu"]  # the command line sets it
    of_2_8 = verdicts(old, OF_2_8)
    assert [name for name in names if of_2_8[name]] == ["xpu-backend"]
    assert not of_2_8["telemetry"]
    older = ("torch-tpu", "hub-repository", "accelerator-names", "adamw", "encode-plus")
    assert [name for name in older if newest[name]] == list(older)
    assert [name for name in older if of_2_8[name]] == ["torch-tpu", "accelerator-names", "adamw"]
    assert not any(verdicts("", NEWEST)[name] for name in names)
    assert newest["cpu-device"]
    assert of_2_8["cpu-device"]
    assert not verdicts("", {**OF_2_8, "accelerate": "0.25.0"})["cpu-device"]
    assert not verdicts("", {"torch": "2.13.0"})["cpu-device"]
    assert (newest["no-padding"], of_2_8["no-padding"]) == (True, False)
    assert not verdicts("--ddp_backend gloo", NEWEST)["ddp-backend"]
    assert verdicts("--ddp_backend=ccl", NEWEST)["ddp-backend"]


@pytest.mark.parametrize("name", ["Trainer", "Seq2SeqTrainer"])
def test_the_tokenizer_of_a_trainer_is_passed_on_as_its_processing_class(name: str) -> None:
    class New:
        def __init__(self, model: str, processing_class: str | None = None) -> None:
            self.given = model, processing_class

    module: Any = ModuleType("transformers")
    setattr(module, name, New)
    trainer_names.rename_tokenizer(Situation((), {}, "gloo"), module)
    new: Any = New
    trainers = new("bert", tokenizer="words"), new("bert", "words"), new("bert")
    assert [one.given for one in trainers] == [("bert", "words"), ("bert", "words"), ("bert", None)]


def test_every_adaptation_has_its_own_name_and_a_summary() -> None:
    names = [one.name for one in catalogue.ALL]
    assert len(set(names)) == len(names)
    assert all(one.summary and "\n" not in one.summary for one in catalogue.ALL)


def test_adaptations_are_turned_off_by_flag_and_by_variable() -> None:
    off = catalogue.switched_off(["no-cuda", "use-cpu,telemetry"], [], {contract.NO_ADAPT: "loss-scale"})
    assert off == {"no-cuda", "use-cpu", "telemetry", "loss-scale", "no-padding-answers"}
    assert catalogue.switched_off(["all"], [], {}) == {one.name for one in catalogue.ALL}
    with pytest.raises(UsageError, match="'no-such', 'nothing'"):
        catalogue.switched_off([], ["nothing"], {contract.NO_ADAPT: "no-such"})


def test_an_adaptation_that_changes_results_is_on_only_if_asked_for() -> None:
    assert [one.name for one in catalogue.ALL if not one.is_default] == ["no-padding-answers"]
    assert catalogue.switched_off([], [], {}) == {"no-padding-answers"}
    assert catalogue.switched_off([], ["no-padding-answers"], {}) == set()
    assert catalogue.switched_off(["no-padding-answers"], ["no-padding-answers"], {}) == {"no-padding-answers"}


def test_explain_lists_every_adaptation_without_running_anything() -> None:
    done = entrypoint("run", "--explain", "--no-adapt", "no-cuda", "none.py", "--no_cuda", "--explain")
    assert (done.returncode, done.stderr) == (0, "")
    lines = {line[4:].split()[0]: line[:3].strip() for line in done.stdout.splitlines()[2:] if line[4:5].strip()}
    assert list(lines) == [one.name for one in catalogue.ALL]
    assert (lines["no-cuda"], lines["no-padding-answers"]) == ("off", "off")
    assert "turn on with --adapt" in done.stdout


def test_the_error_for_an_unknown_adaptation_is_one_line() -> None:
    assert "no adaptation is called 'x'" in one_error_line(entrypoint("run", "--explain", "--no-adapt", "x"))


@pytest.mark.parametrize(
    ("version", "numbers"),
    [("5.23.0", (5, 23, 0)), ("2.13.0+cpu", (2, 13, 0)), ("4.46.0.dev0", (4, 46, 0)), (None, ())],
)
def test_versions_compare_as_numbers(version: str | None, numbers: tuple[int, ...]) -> None:
    assert release(version) == numbers
