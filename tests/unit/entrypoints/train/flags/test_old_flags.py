"""Flags of old guides and misspelled flags each get one line with the right flag."""

from __future__ import annotations

import pytest

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.compat import training_arguments
from cpu_train_stack.train.flags import arguments, old_flags

# The release that the default pin has: what it knows of the old flags.
KNOWN = frozenset({"fp16", "fp16_full_eval", "auto_find_batch_size", "local_rank", "ddp_backend", "deepspeed"})
KNOWN |= {"overwrite_output_dir"}  # this trainer's own


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        # From the guides.
        ("--no_cuda --bf16", "--use_cpu=true --bf16"),
        ("--no_cuda True --ddp_backend ccl", "--use_cpu=True --backend=ccl"),
        ("--xpu_backend ccl --seed 3", "--backend=ccl --seed 3"),
        ("--ddp-backend=gloo", "--backend=gloo"),
        ("--use_ipex --bf16", "--bf16"),
        ("--use_cpu", "--use_cpu"),
        ("--task_name mrpc", "--dataset_config_name=mrpc --dataset_name=nyu-mll/glue"),
        ("--overwrite_output_dir True", "--overwrite_output_dir True"),
        ("--local_rank -1", ""),
        # Other flags of that time.
        ("--evaluation_strategy epoch", "--eval_strategy=epoch"),
        ("--per_gpu_train_batch_size 4", "--per_device_train_batch_size=4"),
        ("--warmup_ratio 0.1", "--warmup_steps=0.1"),
        ("--fp16", "--bf16=true"),
        ("--fp16_full_eval --fp16_backend auto --fp16_opt_level O1", "--bf16_full_eval=true"),
        ("--half_precision_backend cpu_amp --jit_mode_eval", ""),
        ("--auto_find_batch_size --save_safetensors False --logging_dir /x", ""),
        ("--group_by_length", "--train_sampling_strategy=group_by_length"),
        ("--group_by_length False", "--train_sampling_strategy=random"),
        ("--max_length 64", "--max_seq_length=64"),
        ("--max_source_length 64 --generation_num_beams 4", "--max_seq_length=64 --num_beams=4"),
        ("--val_max_target_length 32", "--generation_max_length=32"),
    ],
)
def test_an_old_flag_is_replaced_with_one_note(given: str, expected: str) -> None:
    cleaned = old_flags.clean(given.split(), known=KNOWN)
    assert cleaned.argv == expected.split()
    changed = [word for word in given.split() if word.startswith("--") and word not in expected.split()]
    assert len(cleaned.notes) == len(changed)
    assert not any("\n" in note or "None" in note for note in cleaned.notes)


def test_train_handles_every_old_flag_that_run_adapts() -> None:
    adapted = {"local-rank", *training_arguments.OLD_FIELDS}
    assert adapted <= {name.replace("_", "-") for name in old_flags.HANDLED}
    assert {"no-cuda", "ddp-backend"} <= adapted


def test_warmup_steps_of_zero_leave_the_warmup_to_an_old_ratio() -> None:
    cleaned = old_flags.clean(["--warmup_steps", "0", "--warmup_ratio", "0.1"])
    assert cleaned.argv == ["--warmup_steps", "0", "--warmup_steps=0.1"]


def test_the_replacement_of_an_old_flag_takes_precedence() -> None:
    cleaned = old_flags.clean(["--ddp_backend", "gloo", "--backend", "ccl", "--fp16", "--bf16", "False"])
    assert cleaned.argv == ["--backend", "ccl", "--bf16", "False"]
    assert cleaned.notes == [
        "--ddp_backend is dropped: --backend is given",
        "--fp16 is dropped: --bf16 is given",
    ]


def test_logging_dir_becomes_tensorboards_variable_unless_it_is_set() -> None:
    cleaned = old_flags.clean(["--logging_dir", "/logs"])
    assert cleaned.notes == [
        "--logging_dir has become the variable TENSORBOARD_LOGGING_DIR: it names tensorboard's folder"
    ]
    for environ, expected in (({}, "/logs"), ({"TENSORBOARD_LOGGING_DIR": "/mine"}, "/mine")):
        cleaned.export(environ)
        assert environ == {"TENSORBOARD_LOGGING_DIR": expected}


@pytest.mark.parametrize(
    ("argv", "advice"),
    [
        (["--deepspeed", "x.json"], "remove it"),
        (["--remove_unused_columns", "False"], "remove it"),
        (["--task_name", "ner"], "expected a GLUE task"),
    ],
)
def test_a_flag_without_an_equivalent_is_refused_with_the_fix(argv: list[str], advice: str) -> None:
    with pytest.raises(UsageError, match=advice):
        old_flags.clean(["--bf16", *argv], known=KNOWN)


def test_use_ipex_is_kept_if_image_and_release_support_it() -> None:
    known = frozenset({"use_ipex"})
    assert old_flags.clean(["--use_ipex"], has_ipex=True, known=known).argv == ["--use_ipex"]
    assert old_flags.clean(["--use_ipex"], has_ipex=False, known=known).argv == []
    assert old_flags.clean(["--use_ipex"], has_ipex=True).argv == []


def test_flags_that_a_release_supports_are_kept() -> None:
    for argv in (["--warmup_ratio", "0.1"], ["--group_by_length"], ["--logging_dir", "/x"]):
        assert (
            old_flags.clean(argv, known=frozenset({"warmup_ratio", "group_by_length", "logging_dir"})).argv == argv
        )


@pytest.mark.parametrize("argv", [["--use_cpu", "False"], ["--no_cuda=0"]], ids=" ".join)
def test_other_devices_than_cpus_are_refused(argv: list[str]) -> None:
    with pytest.raises(UsageError, match="CPUs only"):
        old_flags.clean(argv)


def test_other_flags_and_their_values_are_not_changed() -> None:
    argv = ["--learning_rate", "-1e-5", "--output_dir=/x", "--", "y"]
    assert old_flags.clean(argv).argv == argv


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("--max_seq_lenght", "did you mean --max_seq_length?"),
        ("--learning-rat=3", "did you mean --learning_rate?"),
        ("--zzz", "unknown flag --zzz: run train --help"),
        ("stray", "unexpected argument 'stray', expected a --flag"),
    ],
)
def test_the_error_for_an_unknown_flag_names_the_nearest_flag(argument: str, expected: str) -> None:
    assert expected in str(arguments.unknown(argument, ["max_seq_length", "learning_rate", "output_dir"]))
