"""Flags of old guides and typing errors each get one line that says what to write."""

from __future__ import annotations

import pytest

from entrypoints.errors import UsageError
from entrypoints.train import flags


@pytest.mark.parametrize(
    ("argv", "advice"),
    [
        (["--ddp_backend", "ccl"], "--backend"),
        (["--ddp-backend=ccl"], "--backend"),
        (["--xpu_backend", "ccl"], "--backend"),
        (["--evaluation_strategy", "epoch"], "--eval_strategy"),
        (["--use_ipex"], "drop it"),
        (["--fp16"], "--bf16"),
        (["--warmup_ratio", "0.1"], "--warmup_steps"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_flag_of_an_old_guide_is_answered_with_what_to_write(argv: list[str], advice: str) -> None:
    with pytest.raises(UsageError) as raised:
        flags.clean(["--bf16", *argv])
    assert advice in str(raised.value)
    assert "\n" not in str(raised.value)


def test_ipex_is_a_flag_where_the_image_has_it_and_answered_with_the_reason_where_it_has_not() -> None:
    assert flags.clean(["--use_ipex", "--bf16"], has_ipex=True).argv == ["--use_ipex", "--bf16"]
    with pytest.raises(UsageError, match="this image has no IPEX: torch has taken its optimizations over"):
        flags.clean(["--use_ipex", "--bf16"], has_ipex=False)
    with pytest.raises(UsageError, match="write --backend"):
        flags.clean(["--ddp_backend", "ccl"], has_ipex=True)


@pytest.mark.parametrize(
    "argv", [["--no_cuda"], ["--no_cuda", "True"], ["--use_cpu=true"], ["--use-cpu"]], ids=" ".join
)
def test_asking_for_cpus_is_accepted_with_a_note(argv: list[str]) -> None:
    cleaned = flags.clean([*argv, "--bf16", "--seed", "3"])
    assert cleaned.argv == ["--bf16", "--seed", "3"]
    assert len(cleaned.notes) == 1


def test_a_release_keeps_what_its_own_flags_mean() -> None:
    assert flags.clean(["--warmup_ratio", "0.1"], known=frozenset({"warmup_ratio"})).argv == [
        "--warmup_ratio",
        "0.1",
    ]
    with pytest.raises(UsageError, match="--bf16"):
        flags.clean(["--fp16"], known=frozenset({"fp16"}))


def test_grouping_has_its_old_name_too() -> None:
    cleaned = flags.clean(["--group_by_length", "--bf16"])
    assert cleaned.argv == ["--train_sampling_strategy", "group_by_length", "--bf16"]
    assert cleaned.notes == ["--group_by_length is now --train_sampling_strategy group_by_length"]
    assert flags.clean(["--group_by_length", "False", "--bf16"]).argv == ["--bf16"]
    assert flags.clean(["--group_by_length"], known=frozenset({"group_by_length"})).argv == ["--group_by_length"]


@pytest.mark.parametrize("argv", [["--use_cpu", "False"], ["--no_cuda=0"]], ids=" ".join)
def test_asking_for_something_else_than_cpus_is_refused(argv: list[str]) -> None:
    with pytest.raises(UsageError, match="CPUs only"):
        flags.clean(argv)


def test_other_flags_and_their_values_pass_untouched() -> None:
    argv = ["--learning_rate", "-1e-5", "--output_dir=/x", "--", "y"]
    assert flags.clean(argv).argv == argv


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("--max_seq_lenght", "did you mean --max_seq_length?"),
        ("--learning-rat=3", "did you mean --learning_rate?"),
        ("--zzz", "unknown flag --zzz: train --help"),
        ("stray", "found 'stray' where a --flag was expected, or before them all a config file"),
    ],
)
def test_an_unknown_flag_is_answered_with_the_nearest_known_one(argument: str, expected: str) -> None:
    assert expected in str(flags.unknown(argument, ["max_seq_length", "learning_rate", "output_dir"]))
