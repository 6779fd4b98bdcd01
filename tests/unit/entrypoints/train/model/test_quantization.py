"""--load_in_4bit: the flags and images that it needs, and those that it excludes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from cpu_train_stack.cli import packages
from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.train.flags.arguments import TaskArguments
from cpu_train_stack.train.model import quantization

NEW = {"bitsandbytes": "0.50.2", "transformers": "5.23.0"}


def check(
    monkeypatch: pytest.MonkeyPatch, installed: dict[str, str], is_sharded: bool = False, **flags: bool
) -> None:
    monkeypatch.setattr(
        packages, "versions", lambda names: {name: installed[name] for name in names if name in installed}
    )
    arguments = TaskArguments(load_in_4bit=True, use_peft=True)
    for name, value in flags.items():
        setattr(arguments, name, value)
    quantization.check(arguments, is_sharded, arguments.use_peft)


def test_an_adapter_over_weights_in_4_bits_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    check(monkeypatch, NEW)


def test_an_image_without_bitsandbytes_trains_without_the_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    check(monkeypatch, {}, load_in_4bit=False)


@pytest.mark.parametrize(
    ("installed", "flags", "message"),
    [
        (NEW, {"use_peft": False}, "--load_in_4bit needs an adapter"),
        (NEW, {"merge_adapter": True}, "merge the adapter afterwards"),
        (NEW, {"is_sharded": True}, "--load_in_4bit and --fsdp exclude each other"),
        ({"transformers": "5.23.0"}, {}, "add it with ./inv build --with bitsandbytes"),
        ({**NEW, "bitsandbytes": "0.45.5"}, {}, "needs bitsandbytes 0.50.0 or newer, this image has 0.45.5"),
        ({**NEW, "transformers": "4.55.4"}, {}, "this image has 4.55.4: use a newer pin"),
    ],
    ids=["no adapter", "merged", "sharded", "no package", "old package", "old pin"],
)
def test_what_cannot_work_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch, installed: dict[str, str], flags: dict[str, bool], message: str
) -> None:
    with pytest.raises(UsageError) as error:
        check(monkeypatch, installed, **flags)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_weight_in_4_bits_counts_as_many_weights_as_it_holds() -> None:
    class Packed:
        quant_state = SimpleNamespace(shape=SimpleNamespace(numel=lambda: 64))

        def numel(self) -> int:
            return 32

    class Plain:
        def numel(self) -> int:
            return 32

    assert [quantization.size_of(weight) for weight in (Packed(), Plain())] == [64, 32]
