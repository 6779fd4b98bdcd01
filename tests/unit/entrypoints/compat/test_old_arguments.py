"""Arguments that libraries renamed or removed, in modules that stand for theirs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cpu_train_stack.adapt.adaptation import Situation
from cpu_train_stack.compat import old_arguments, training_arguments


class Model:
    """Stands for PreTrainedModel."""

    @classmethod
    def from_pretrained(cls, name: str, **options: Any) -> Any:
        return cls, name, options


def test_the_old_name_of_a_token_is_passed_on_to_functions_and_methods_of_classes() -> None:
    situation = Situation((), {}, "gloo")
    datasets = SimpleNamespace(load_dataset=lambda name, **options: (name, options))
    old_arguments.rename_token(situation, datasets)
    models = SimpleNamespace(PreTrainedModel=type("PreTrainedModel", (Model,), {**vars(Model)}))
    old_arguments.rename_token(situation, models)
    child: Any = type("Bert", (models.PreTrainedModel,), {})
    for given, kept in (({"use_auth_token": "a"}, {"token": "a"}), ({"use_auth_token": False}, {})):
        assert datasets.load_dataset("glue", **given) == ("glue", kept)
        assert child.from_pretrained("bert", **given) == (child, "bert", kept)


def test_the_flags_of_all_adaptations_are_replaced_in_one_pass_with_a_line_for_each(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Parser:
        """Stands for HfArgumentParser."""

        dataclass_types = (type("TrainingArguments", (), {}),)
        _actions = ()

        def parse_known_args(self, args: list[str]) -> list[str]:
            return args

        def parse_dict(self, args: dict[str, Any]) -> dict[str, Any]:
            return args

    monkeypatch.setattr(training_arguments, "_ACTIVE", {})
    names, original = ("no-cuda", "evaluation-strategy"), Parser.parse_known_args
    for name in names:
        training_arguments.hook_parser(
            Situation((), {}, "gloo").named(name), SimpleNamespace(HfArgumentParser=Parser)
        )
    assert vars(Parser.parse_known_args)["__wrapped__"] is original
    parsed = Parser().parse_known_args(["--no_cuda", "--evaluation_strategy", "no"])
    assert parsed == ["--use_cpu=true", "--eval_strategy=no"]
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in lines] == [f"adapted ({name})" for name in names]
