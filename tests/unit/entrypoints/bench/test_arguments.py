"""The command lines of `bench`, without torch."""

from __future__ import annotations

from pathlib import Path

import pytest

from cpu_train_stack.bench import arguments
from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.group.backends import installed_backends


def test_lists_are_separated_by_commas() -> None:
    options = arguments.parse(
        ["collectives", "--dtypes", "bfloat16", "--sizes", "4K,1M", "--collectives", "all_gather"]
    )
    assert isinstance(options, arguments.Collectives)
    assert (options.dtypes, options.sizes, options.collectives) == (
        ("bfloat16",),
        (4096, 1 << 20),
        ("all_gather",),
    )


def test_scaling_waits_in_gloo_and_takes_every_backend_of_the_image() -> None:
    options = arguments.parse(["scaling", "--nodes", "2,1", "--output", "x.json"])
    assert isinstance(options, arguments.Scaling)
    assert (options.nodes, options.backend, options.output) == ((2, 1), "gloo", Path("x.json"))
    assert options.backends == tuple(installed_backends())


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("scaling --ratio x", "argument --ratio: found 'x', expected a number from 0.001 to 1000;"),
        ("scaling --ratio 0", "found '0', expected a number from 0.001"),
        ("scaling --seconds x", "found 'x', expected a number of seconds above 0"),
        ("scaling --seconds nan", "found 'nan', expected a number of seconds"),
        ("scaling --nodes 1,0", "found '0', expected an integer of 1 or more"),
        ("scaling --backends none", "backend 'none' is not in this image"),
        ("collectives --dtypes float8", "found 'float8', expected float32 or bfloat16"),
    ],
)
def test_an_invalid_value_is_named_with_what_is_expected(argv: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        arguments.parse(argv.split())


def test_an_output_that_cannot_be_written_is_refused_before_the_measurement(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"--output {tmp_path}, expected a file in a folder that exists"):
        arguments.prepare(["collectives", "--output", str(tmp_path)])
