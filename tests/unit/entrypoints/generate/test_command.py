"""The longest answer that a model can give to a prompt, and prompts that are no text."""

from __future__ import annotations

import errno
import io
import sys
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.options import parse_options
from cpu_train_stack.generate.command import Generate, _lines, prepare

TABLE = SimpleNamespace(num_embeddings=34)


def model(learned: str | None = None, pairs: bool = False) -> Any:
    """`learned`: the name of its table of positions."""
    modules = {"model.embed_tokens": TABLE, **({learned: TABLE} if learned else {})}
    config = SimpleNamespace(max_position_embeddings=32, is_encoder_decoder=pairs)
    return SimpleNamespace(config=config, named_modules=modules.items)


def longest(made: Any, tokens: int, asked: int = 20) -> int:
    return Generate("x", max_new_tokens=asked)._longest(made, tokens)


@pytest.mark.parametrize(
    ("made", "tokens", "expected"),
    [
        pytest.param(model(), 100, 20, id="computed-positions"),
        pytest.param(model("transformer.wpe"), 12, 20, id="room"),
        pytest.param(model("transformer.wpe"), 31, 1, id="one-token"),
        pytest.param(model("model.encoder.embed_positions", pairs=True), 32, 20, id="encoder-decoder"),
    ],
)
def test_an_answer_ends_at_the_last_learned_position(made: Any, tokens: int, expected: int) -> None:
    assert longest(made, tokens) == expected


def test_a_seed_may_be_zero() -> None:
    assert parse_options(Generate, ["model", "--seed", "0"], "generate", "").seed == 0


def test_a_shorter_answer_is_noted(capsys: pytest.CaptureFixture[str]) -> None:
    assert longest(model("transformer.wpe"), 30) == 2
    assert capsys.readouterr().err == ("note: --max_new_tokens 20 is reduced to 2: the model has 32 positions\n")


@pytest.mark.parametrize(
    ("made", "tokens", "expected"),
    [
        pytest.param(model(), 0, "the prompt has no tokens", id="empty"),
        pytest.param(model("transformer.wpe"), 32, "32 tokens, expected fewer than the model's 32", id="full"),
        pytest.param(model("model.encoder.embed_positions", pairs=True), 33, "has 33 tokens", id="source"),
    ],
)
def test_a_prompt_that_allows_no_answer_is_refused(made: Any, tokens: int, expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        longest(made, tokens)


LATIN_1 = b"caf\xe9".decode(errors="surrogateescape")  # as Python reads arguments and standard input


@pytest.mark.parametrize("words", [[LATIN_1], ["hello", "--system", LATIN_1]], ids=["prompt", "system"])
def test_arguments_that_are_not_utf_8_are_refused(words: list[str]) -> None:
    with pytest.raises(UsageError, match="which is not UTF-8"):
        prepare(["model", *words])


def test_a_line_that_is_not_utf_8_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"hello\n\n{LATIN_1}\n"))
    lines = _lines()
    assert next(lines) == "hello"
    with pytest.raises(UsageError, match="expected a prompt in UTF-8"):
        next(lines)


class Unread(Generate):
    def _answer(self, *_: object) -> NoReturn:
        raise OSError(int(self.model), "")


@pytest.mark.parametrize(
    ("number", "code", "printed"),
    [(errno.EPIPE, 141, ""), (errno.ENOSPC, 2, "No space left"), (errno.EDQUOT, 2, "Disk quota exceeded")],
)
def test_a_pipe_that_closes_first_is_no_error_and_a_full_disk_is_one_line(
    number: int, code: int, printed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert Unread(str(number), ("hello",))._answer_all(None, None) == code
    err = capsys.readouterr().err
    assert printed in err
    assert len(err.splitlines()) == bool(printed)


def test_another_error_of_a_file_keeps_its_traceback() -> None:
    with pytest.raises(OSError, match=str(errno.EIO)):
        Unread(str(errno.EIO), ("hello",))._answer_all(None, None)
