"""The command `generate`: prompts in, completions out, from a model's folder or an adapter's. One process."""

from __future__ import annotations

import io
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from cpu_train_stack.cli import packages
from cpu_train_stack.cli.errors import UsageError, one_line
from cpu_train_stack.cli.options import integer, number, option, parse_options
from cpu_train_stack.cli.say import lost_output, say
from cpu_train_stack.group.banner import Announce
from cpu_train_stack.machine import cpus
from cpu_train_stack.placement.detect import DistributedEnvironment

_DESCRIPTION = """\
Print what a language model answers to each prompt. Without PROMPT, each line of standard input is a prompt.

With a chat template, a prompt is the user's message of a conversation; without, the model continues the text. For
an encoder-decoder model, a prompt is a source, with the --source_prefix of the training. The answer is the most
likely one, unless --temperature is given.
"""
# The tables of learned positions: GPT-2, OPT and BART, BERT.
_POSITIONS = ("wpe", "embed_positions", "position_embeddings")


@dataclass(frozen=True)
class Generate:
    """The command line of `generate`."""

    model: str = option("", "folder or hub name of a model, or folder of an adapter", metavar="MODEL")
    prompts: tuple[str, ...] = option("", "the prompts", nargs="*", metavar="PROMPT")
    system: str | None = option("--system", "the system message of each conversation", metavar="TEXT")
    raw: bool = option("--raw", "continue the prompt as text, without the chat template", False)
    max_new_tokens: int = option(
        "--max_new_tokens", "longest answer in tokens (default: %(default)s)", 256,
        type=integer(1, 2**31 - 1), metavar="N",
    )  # fmt: skip
    temperature: float | None = option(
        "--temperature", "sample at random; 1 keeps the model's probabilities, lower values favor likely tokens",
        type=number(0.001, 1000), metavar="T",
    )  # fmt: skip
    seed: int = option("--seed", "seed of the random samples (default: %(default)s)", 42, type=integer(0))
    as_json: bool = option("--json", "print one JSON document for each prompt, on a line of its own", False)
    # The group of one rank, which no code here uses.
    backend = "gloo"
    timeout_seconds = 60.0

    def run(self, environment: DistributedEnvironment, _announce: Announce, /) -> int:
        """Answer all prompts. Raises UsageError for a model that cannot answer."""
        if environment.world_size > 1:
            raise UsageError(
                f"generate runs in one process, found {environment.world_size} ranks: start it without a launcher"
            )
        import torch

        from cpu_train_stack.train.loop import console

        console.prepare(environment.rank)
        dtype = torch.float32 if cpus.bf16_of(os.environ) == cpus.EMULATED else torch.bfloat16
        model, tokenizer = _load(self.model, dtype)
        if (self.system is not None) and (self.raw or not tokenizer.chat_template):
            raise UsageError("--system needs a chat template: leave out --raw, or use a model with a template")
        if not self._plain(tokenizer):
            from cpu_train_stack.train.tasks import chat

            chat.stop_after_answers(model.generation_config, tokenizer)
        torch.manual_seed(self.seed)
        return self._answer_all(model, tokenizer)

    def _answer_all(self, model: Any, tokenizer: Any) -> int:
        """Answer all prompts. Returns the exit code."""
        several = len(self.prompts) != 1
        try:
            for prompt in self.prompts or _lines():
                if several and not self.as_json:
                    print(f"> {prompt}", flush=True)
                self._answer(model, tokenizer, prompt)
        except OSError as error:  # `generate MODEL < prompts | head -1`
            return lost_output(error)
        return 0

    def _answer(self, model: Any, tokenizer: Any, prompt: str) -> None:
        """Print the answer: as it is generated, or as JSON at its end."""
        import torch
        from transformers import TextStreamer

        inputs = tokenizer(
            self._text(tokenizer, prompt), return_tensors="pt", add_special_tokens=self._plain(tokenizer)
        )
        inputs.pop("token_type_ids", None)  # decoders refuse it; some tokenizers return it
        longest = self._longest(model, inputs["input_ids"].shape[1])
        # A model that searches with several beams does not know its first word before its last one.
        streams = not self.as_json and (model.generation_config.num_beams or 1) == 1
        streamer = TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True) if streams else None
        began = time.monotonic()
        with torch.inference_mode():
            tokens = model.generate(
                **inputs,
                max_new_tokens=longest,
                do_sample=self.temperature is not None,
                temperature=self.temperature,
                top_p=None,
                top_k=None,
                pad_token_id=tokenizer.pad_token_id
                if tokenizer.pad_token_id is not None
                else tokenizer.eos_token_id,
                streamer=streamer,
            )
        seconds = time.monotonic() - began
        # An encoder-decoder model begins its answer with one special token, and does not repeat the prompt.
        new = tokens[0, 1 if model.config.is_encoder_decoder else inputs["input_ids"].shape[1] :]
        completion = tokenizer.decode(new, skip_special_tokens=True)
        if not (self.as_json or streams):
            print(completion, flush=True)
        if self.as_json:
            document = {
                "prompt": prompt,
                "completion": completion,
                "tokens": len(new),
                "seconds": round(seconds, 3),
            }
            print(json.dumps(document), flush=True)
        elif sys.stderr.isatty():
            dtype = str(model.dtype).removeprefix("torch.")
            say(f"({len(new)} tokens in {seconds:.1f} s, {len(new) / seconds:.1f}/s, {dtype})")

    def _longest(self, model: Any, tokens: int) -> int:
        """The longest answer to a prompt of `tokens`. Raises UsageError for a prompt that allows no answer."""
        if tokens == 0:
            raise UsageError("the prompt has no tokens, expected at least one: pass a prompt with text")
        positions, wanted = _positions(model), self.max_new_tokens
        if positions is None:
            return wanted
        # The answer of an encoder-decoder model begins with one special token.
        room = positions - (1 if model.config.is_encoder_decoder else tokens)
        if room < 1 or tokens > positions:
            raise UsageError(
                f"the prompt has {tokens} tokens, expected fewer than the model's {positions} positions: pass a "
                "shorter prompt"
            )
        if wanted > room:
            say(f"note: --max_new_tokens {wanted} is reduced to {room}: the model has {positions} positions")
        return min(wanted, room)

    def _plain(self, tokenizer: Any) -> bool:
        """Whether the prompt is continued as text. A chat template writes the special tokens itself."""
        return self.raw or not tokenizer.chat_template

    def _text(self, tokenizer: Any, prompt: str) -> str:
        if self._plain(tokenizer):
            return prompt
        from cpu_train_stack.train.tasks import chat

        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        return chat.render(tokenizer, [*system, {"role": "user", "content": prompt}], ask=True)


def prepare(argv: Sequence[str]) -> Generate:
    """Parse the command line and check the model's folder. Raises UsageError."""
    parsed = parse_options(Generate, argv, "generate", _DESCRIPTION, "[options] MODEL [PROMPT ...]")
    for text in (*parsed.prompts, parsed.system or ""):
        _check_text(text)
    from cpu_train_stack.train.model import pretrained

    pretrained.check_folder(parsed.model)
    return parsed


def _load(name: str, dtype: Any) -> tuple[Any, Any]:
    """The model, with an adapter merged into it, and the tokenizer. Raises UsageError."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

    from cpu_train_stack.train.flags.arguments import TaskArguments
    from cpu_train_stack.train.model import adapters, pretrained

    tokenizer = pretrained.load_tokenizer(TaskArguments(model_name_or_path=name), pads=False)
    base = adapters.base_of(name)
    installed = packages.release(packages.versions(["transformers"]).get("transformers"))
    name_of_dtype = "dtype" if installed >= packages.release("4.56") else "torch_dtype"
    try:
        pairs = AutoConfig.from_pretrained(base or name).is_encoder_decoder
        auto = AutoModelForSeq2SeqLM if pairs else AutoModelForCausalLM
        model, info = auto.from_pretrained(base or name, output_loading_info=True, **{name_of_dtype: dtype})
        if base:
            from peft import PeftModel

            model = adapters.merge(PeftModel.from_pretrained(model, name))
    except Exception as error:
        raise UsageError(
            f"model '{name}' cannot be loaded as a language model, which generate needs: {one_line(error)}"
        ) from error
    if not pairs and info.get("missing_keys"):
        missing = sorted(info["missing_keys"])
        raise UsageError(
            f"model '{name}' has no weights for {missing[0]}, expected a language model (trained with --task "
            "text-generation)"
        )
    return model.eval(), tokenizer


def _positions(model: Any) -> int | None:
    """How many positions a model has, if it learned an embedding of each; None if it computes them."""
    if all(
        name.rpartition(".")[2] not in _POSITIONS or not hasattr(module, "num_embeddings")
        for name, module in model.named_modules()
    ):
        return None
    found: int | None = getattr(model.config, "max_position_embeddings", None)
    return found


def _lines() -> Iterator[str]:
    """The lines of standard input, without empty ones."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")  # for _check_text, in every locale
    for line in sys.stdin or ():
        if line.strip():
            _check_text(line)
            yield line.strip()


def _check_text(text: str) -> None:
    """Raise UsageError for a prompt with bytes that are not UTF-8. Python reads them as halves of characters."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"found {text.strip()[:40]!a}, which is not UTF-8, expected a prompt in UTF-8: convert it, for "
            "example with iconv"
        ) from error
