"""A config file has the same meaning as flags on the command line, and its errors name the line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cpu_train_stack.cli import config_files
from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.options import default_backend
from cpu_train_stack.rank import start
from cpu_train_stack.train.flags import arguments, old_flags
from cpu_train_stack.train.flags import help as help_text


def written(folder: Path, text: str) -> str:
    path = folder / "config.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def argv(folder: Path, text: str) -> list[str]:
    return [word for entry in config_files.read(written(folder, text)) for word in entry.argv]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("eval_strategy: no", ["--eval_strategy", "no"]),
        ("learning_rate: 5e-5", ["--learning_rate", "5e-5"]),
        ("bf16: true", ["--bf16", "true"]),
        ("per-device-train-batch-size: 4", ["--per_device_train_batch_size", "4"]),
        ("report_to: [tensorboard, none]", ["--report_to", "tensorboard", "none"]),
        ("lr_scheduler_kwargs: {num_cycles: 2}", ["--lr_scheduler_kwargs", '{"num_cycles": 2}']),
        (
            "a: {b: 1e-6, c: 010, d: '3', e: no, f: 2026-01-01, g: [.5, null, 3]}",
            ["--a", '{"b": 1e-06, "c": "010", "d": "3", "e": false, "f": "2026-01-01", "g": [0.5, null, 3]}'],
        ),
        ("a: {<<: {b: 1}, c: 2}", ["--a", '{"b": 1, "c": 2}']),
        ("a: {b: 1_000, c: +5, d: 0x10, e: -3}", ["--a", '{"b": 1000, "c": 5, "d": 16, "e": -3}']),
        ("task:", []),
        ("task: null", []),
        ('task: "null"', ["--task", "null"]),
        ("# nothing", []),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_values_are_taken_literally(tmp_path: Path, line: str, expected: list[str]) -> None:
    assert argv(tmp_path, line) == expected


@pytest.mark.parametrize("prefix", ["\U0001f600 ", "\\ud83d\\ude00", "a\tb", "a/b"])
def test_any_json_is_read(tmp_path: Path, prefix: str) -> None:
    document = {"source_prefix": prefix, "lr_scheduler_kwargs": {"min_lr": 1e-6}}
    file = tmp_path / "config.json"
    for escapes in (True, False):
        file.write_text(json.dumps(document, indent="\t", ensure_ascii=escapes), encoding="utf-8")
        assert config_files.value_of(str(file), "source_prefix") == prefix
        assert json.loads(str(config_files.value_of(str(file), "lr_scheduler_kwargs"))) == {"min_lr": 1e-6}


def test_an_escape_that_is_none_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(r'{"source_prefix": "\ud8zz\udczz"}')
    with pytest.raises(UsageError, match="line 1"):
        config_files.read(str(file))


@pytest.mark.parametrize(
    "value",
    ["no", "null", "a: b", "5e-5", "", "é", "two\nlines", 5e-5, True, 3, '{"a": 1}'],
    ids=repr,
)
def test_printed_values_are_read_back(tmp_path: Path, value: Any) -> None:
    line = config_files.dump("key", value)
    assert "\n" not in line
    words = argv(tmp_path, line)
    assert words[1:] == ([str(value)] if isinstance(value, str) else words[1:])
    assert len(words) == 2
    if not isinstance(value, str):
        assert type(value)(words[1]) == value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: 1\nb: [", "line 2"),
        ("- a\n- b\n", "found sequence, expected one 'key: value' per line"),
        ("bf16: 1\nseed: 2\nbf16: 1\n", "line 3: 'bf16' is repeated, first in line 1"),
        ("report_to: [[a]]\n", "line 1: 'report_to' is a list of lists"),
        ("? [a]\n: b\n", "expected the name of a flag"),
        ("a: {[b]: 1}\n", "cannot be converted to JSON"),
        ("a: &x {b: *x}\n", "cannot be converted to JSON"),
        ("a: {b: !!bool 3}\n", "cannot be converted to JSON"),
        ("a: {b: !!float x}\n", "cannot be converted to JSON"),
        ("a: {b: !!float ''}\n", "cannot be converted to JSON"),
    ],
    ids=[
        "broken",
        "list",
        "twice",
        "nested",
        "odd key",
        "odd key in a mapping",
        "cycle",
        "bool",
        "float",
        "empty float",
    ],
)
def test_the_error_for_a_bad_file_names_the_line(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(UsageError) as raised:
        config_files.read(written(tmp_path, text))
    assert expected in str(raised.value)
    assert "\n" not in str(raised.value)


def test_the_error_for_a_missing_file_names_it() -> None:
    with pytest.raises(UsageError, match=r"'/none\.yaml' cannot be read"):
        config_files.read("/none.yaml")


def test_only_the_first_argument_can_be_a_config_file() -> None:
    assert config_files.split(["a.yaml", "--seed", "1"]) == ("a.yaml", ["--seed", "1"])
    assert config_files.split(["--fsdp_config", "a.json"]) == (None, ["--fsdp_config", "a.json"])
    assert config_files.split([]) == (None, [])


def test_the_error_for_an_unknown_key_names_the_nearest_key() -> None:
    assert arguments.unknown_key("max_seq_lenght", ["max_seq_length", "seed"]).endswith(
        "did you mean max_seq_length?"
    )
    assert "train --help" in arguments.unknown_key("zzz", ["max_seq_length", "seed"])


def test_an_access_token_is_not_printed() -> None:
    values = {"hub_token": "hf_secret", "seed": 3}
    parsed = arguments.Parsed(arguments.TaskArguments(), values, frozenset(values), old_flags.Cleaned([], []))
    printed = help_text.config(parsed, {})
    assert "hf_secret" not in printed
    assert "\n# hub_token: not printed" in printed
    assert "\nseed: 3\n" in printed


def test_the_backend_in_a_file_is_known_before_the_rank_starts(tmp_path: Path) -> None:
    file = written(tmp_path, "seed: 1\nbackend: ccl\n")
    assert start.backend_of(["train", file]) == "ccl"
    assert start.backend_of(["train", file, "--backend", "gloo"]) == "gloo"
    assert start.backend_of(["train", written(tmp_path, "ddp_backend: ccl")]) == "ccl"
    assert start.backend_of(["train", written(tmp_path, "seed: [")]) == default_backend()


CHAIN = ("ab", "bc", "cd", "de", "ef", "fg", "gh", "hi", "ij", "jk", "kl", "lm", "mn", "no", "op", "pq")
BOMB = "a: &a {x: 1, y: 2}\n" + "".join(
    f"{new}: &{new} {{x: *{old}, y: *{old}}}\n" for old, new in map(tuple, CHAIN)
)
MERGES = BOMB.replace("x: *", "<<: *").replace("y: *", "z: *")


@pytest.mark.parametrize(
    "text", [BOMB, MERGES, "[" * 50_000, "a: " + "[" * 1000], ids=["aliases", "merges", "list", "value"]
)
@pytest.mark.timeout(20)
def test_a_file_that_would_fill_the_memory_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError) as caught:
        config_files.read(written(tmp_path, text))
    assert "\n" not in str(caught.value)
