"""The methods of tokenizers that transformers 5.0 removed, and `pad_to_max_length`, which it silently ignores."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from cpu_train_stack.adapt.adaptation import Situation
from cpu_train_stack.adapt.changes import before_method


def add_methods(situation: Situation, module: Any) -> None:
    """Let tokenizers encode as in transformers 4. `module`: transformers.tokenization_utils_base."""
    base = module.PreTrainedTokenizerBase
    if hasattr(base, "encode_plus"):
        return

    def report(old: str, new: str) -> None:
        situation.report(f"tokenizer.{old} is now tokenizer({new})")

    def pad(_tokenizer: Any, options: dict[str, Any]) -> None:
        # transformers 4 also truncated to max_length, and without it padded to the longest row.
        if options.pop("pad_to_max_length", False) and not options.get("padding"):
            if options.get("max_length") is None:
                options["padding"] = "longest"
            else:
                options["padding"] = "max_length"
                if options.get("truncation") is None:
                    options["truncation"] = "longest_first"
            situation.report(f'pad_to_max_length=True is now padding="{options["padding"]}"')

    def encode_plus(
        self: Any, text: Any, text_pair: Any = None, add_special_tokens: bool = True, **options: Any
    ) -> Any:
        if not isinstance(text, str) and not options.get("is_split_into_words"):
            raise TypeError(
                f"encode_plus: found a {type(text).__name__}, expected one text, or a list of words with "
                "is_split_into_words=True"
            )
        report("encode_plus", "text, ...")
        return self(text, text_pair, add_special_tokens=add_special_tokens, **options)

    def batch_encode_plus(
        self: Any, batch_text_or_text_pairs: Any, add_special_tokens: bool = True, **options: Any
    ) -> Any:
        if not isinstance(batch_text_or_text_pairs, (list, tuple)):
            found = type(batch_text_or_text_pairs).__name__
            raise TypeError(f"batch_encode_plus: found a {found}, expected a list of texts, pairs or words")
        report("batch_encode_plus", "texts, ...")
        texts, pairs = list(batch_text_or_text_pairs), None
        if not options.get("is_split_into_words") and texts and not any(isinstance(one, str) for one in texts):
            texts, pairs = [one for one, _ in texts], [other for _, other in texts]
        return self(texts, pairs, add_special_tokens=add_special_tokens, **options)

    @contextlib.contextmanager
    def as_target_tokenizer(self: Any) -> Iterator[None]:
        report("as_target_tokenizer", "text_target=...")
        switch = getattr(self, "_switch_to_target_mode", None)
        self._in_target_context_manager = True
        if switch:
            switch()
        try:
            yield
        finally:
            self._in_target_context_manager = False
            if switch:
                self._switch_to_input_mode()

    for name in ("__call__", "encode"):
        before_method(base, name, pad)
    for method in (encode_plus, batch_encode_plus, as_target_tokenizer):
        setattr(base, method.__name__, method)
