"""Options that are declared as fields of a dataclass."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.options import option, parse_options, positive_integer, remaining_command


@dataclass(frozen=True)
class Ask:
    model: str = option("", "the model", metavar="MODEL")
    prompts: tuple[str, ...] = option("", "the prompts", nargs="*", metavar="PROMPT")
    seed: int = option("--seed", "the seed", 42, type=positive_integer)


@dataclass(frozen=True)
class Start:
    ranks: int = option("--ranks", "number of ranks", 1, type=positive_integer)
    command: tuple[str, ...] = remaining_command()


@pytest.mark.parametrize(
    "argv",
    [
        ["bert", "one", "two", "--seed", "3"],
        ["bert", "--seed", "3", "one", "two"],
        ["--seed=3", "bert", "one", "two"],
    ],
)
def test_options_can_stand_before_between_and_after_the_arguments(argv: list[str]) -> None:
    assert parse_options(Ask, argv, "ask", "Ask.") == Ask("bert", ("one", "two"), 3)


def test_the_options_of_a_remaining_command_are_its_own() -> None:
    argv = ["--ranks", "2", "train", "--ranks", "3"]
    assert parse_options(Start, argv, "start", "Start.") == Start(2, ("train", "--ranks", "3"))


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "ask: the following arguments are required: MODEL; see ask --help"),
        (["bert", "--seed=--"], "ask: argument --seed: found '--', expected a value; see ask --help"),
        (["bert", "--seed", "-"], "ask: argument --seed: found '-', which .*"),
        (["bert", "--seed", ""], "ask: argument --seed: found an empty text, expected a value: .*"),
        ([""], "ask: argument MODEL: found an empty text, expected a value: .*"),
        # From Python 3.13 on, argparse accepts 3 as a positional argument.
        (["bert", "--sed", "3"], "ask: unrecognized arguments: --sed( 3)?; see ask --help"),
        (
            ["bert", "--seed", "0"],
            "ask: argument --seed: found '0', expected an integer of 1 or more; see ask --help",
        ),
    ],
)
def test_a_mistake_is_one_line(argv: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=f"^{message}$"):
        parse_options(Ask, argv, "ask", "Ask.")
