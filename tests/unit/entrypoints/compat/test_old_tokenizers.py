"""Tokenizers of transformers 5 called as in transformers 4. Without torch and transformers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cpu_train_stack.adapt.adaptation import Situation
from cpu_train_stack.compat import old_tokenizers


def tokenizer() -> Any:
    """A tokenizer whose calls return their arguments, and the language of the target."""

    class Tokenizer:
        language = "en"
        _in_target_context_manager = False

        def __call__(self, text: Any, text_pair: Any = None, **options: Any) -> Any:
            return text, text_pair, options, self.language

        def encode(self, text: Any, **options: Any) -> Any:
            return text, options

        def _switch_to_target_mode(self) -> None:
            self.language = "fr"

        def _switch_to_input_mode(self) -> None:
            self.language = "en"

    module = SimpleNamespace(PreTrainedTokenizerBase=Tokenizer)
    for _ in range(2):  # the second time, there is nothing to add
        old_tokenizers.add_methods(Situation((), {}, "gloo").named("encode-plus"), module)
    return Tokenizer()


ENCODED: dict[str, Any] = {"add_special_tokens": True}


def test_encode_plus_encodes_one_text_or_a_pair(capsys: pytest.CaptureFixture[str]) -> None:
    made = tokenizer()
    assert made.encode_plus("a", max_length=8, pad_to_max_length=True) == (
        *("a", None, {**ENCODED, "max_length": 8, "padding": "max_length", "truncation": "longest_first"}, "en"),
    )
    assert made.encode_plus("a", "b", False) == ("a", "b", {"add_special_tokens": False}, "en")
    words = made.encode_plus(["a", "b"], is_split_into_words=True)
    assert words == (["a", "b"], None, {**ENCODED, "is_split_into_words": True}, "en")
    with pytest.raises(TypeError, match="encode_plus: found a list, expected one text"):
        made.encode_plus(["a", "b"])
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "adapted (encode-plus): tokenizer.encode_plus is now tokenizer(text, ...)",
        'adapted (encode-plus): pad_to_max_length=True is now padding="max_length"',
    ]


def test_batch_encode_plus_encodes_texts_pairs_or_words() -> None:
    made = tokenizer()
    assert made.batch_encode_plus(["a", "bc"]) == (["a", "bc"], None, ENCODED, "en")
    assert made.batch_encode_plus((("a", "b"), ["c", "d"])) == (["a", "c"], ["b", "d"], ENCODED, "en")
    words = [["a", "b"], ["c", "d"]]
    assert made.batch_encode_plus(words, is_split_into_words=True)[:2] == (words, None)
    assert made.batch_encode_plus([])[:2] == ([], None)
    with pytest.raises(TypeError, match="batch_encode_plus: found a str, expected a list"):
        made.batch_encode_plus("abc")


def test_pad_to_max_length_pads_in_every_call() -> None:
    made = tokenizer()
    assert made("a", pad_to_max_length=True)[2] == {"padding": "longest"}
    assert made("a", pad_to_max_length=True, padding=False)[2] == {"padding": "longest"}
    short = {"max_length": 8, "truncation": False}
    assert made("a", pad_to_max_length=True, **short)[2] == {**short, "padding": "max_length"}
    assert made("a", pad_to_max_length=False, padding=True)[2] == {"padding": True}
    assert made.encode("a", pad_to_max_length=True) == ("a", {"padding": "longest"})


def test_a_target_is_encoded_in_its_own_language() -> None:
    made = tokenizer()
    with made.as_target_tokenizer():
        assert (made("a")[3], made._in_target_context_manager) == ("fr", True)
    assert (made("a")[3], made._in_target_context_manager) == ("en", False)
