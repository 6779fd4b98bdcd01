"""Checks in the image: which tokens of prompts and completions are learnt, and the messages for chats."""

from __future__ import annotations

import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.train.data.splits import Splits
from cpu_train_stack.train.data.tables import DataTable
from cpu_train_stack.train.data.token_files import TokenFolder
from cpu_train_stack.train.data.types import TrainerInputs
from cpu_train_stack.train.model.pretrained import Loaded
from cpu_train_stack.train.tasks import registry
from cpu_train_stack.train.tasks.generation import GenerationArguments

WORDS = {"<end>": 0, "<unk>": 1, "where": 2, "in": 3, "rome": 4}
STRICT = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}{{ messages }}"
CHAT = [{"role": "user", "content": "where"}, {"role": "assistant", "content": "in rome"}]


TOOL = {"type": "function", "function": {"name": "in", "description": "where", "parameters": {}}}
CALLS = (
    "{% for tool in tools or [] %}{{ tool.function.name }} {% endfor %}{% for message in messages %}"
    "{{ message.role }} {{ message.content or message.tool_calls[0].function.name }} <end> {% endfor %}"
    "{% if add_generation_prompt %}assistant {% endif %}"
)
FORGETS = CALLS.replace(
    "message.content or", "(message.content if loop.last or message.role == 'user' else 'in') or"
)
THOUGHTS = CALLS.replace("assistant {% endif %}", "assistant rome {% endif %}")


def tokenizer(ends_texts: bool, template: str) -> Any:
    """`ends_texts`: whether the tokenizer adds <end> to every text, as T5's does."""
    inner = Tokenizer(models.WordLevel(WORDS, "<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    if ends_texts:
        inner.post_processor = processors.TemplateProcessing("$A <end>", special_tokens=[("<end>", 0)])
    options = {"eos_token": "<end>", "unk_token": "<unk>", "chat_template": template}
    return PreTrainedTokenizerFast(tokenizer_object=inner, **options)


def inputs(ends_texts: bool, template: str, **columns: list[Any]) -> TrainerInputs:
    arguments = GenerationArguments(model_name_or_path="x", task="text-generation")
    model = SimpleNamespace(generation_config=None)
    rows = registry.read_rows(arguments, Splits(DataTable("x.jsonl", columns), None))
    loaded: Any = Loaded(model, tokenizer(ends_texts, template), None, ())
    with tempfile.TemporaryDirectory() as folder:
        return registry.make_inputs(arguments, rows, loaded, TokenFolder(Path(folder)))


def refused(template: str, **columns: list[Any]) -> str:
    try:
        inputs(False, template, **columns)
    except UsageError as error:
        return str(error)
    return "not refused"


def main() -> None:
    for ends_texts in (False, True):
        row = inputs(ends_texts, STRICT, prompt=["where"], completion=[" in rome"]).train[0]
        assert (row["input_ids"].tolist(), row["labels"].tolist()) == ([2, 3, 4, 0], [-100, 3, 4, 0]), row
    said = refused(STRICT, messages=[CHAT, [{"role": "system", "content": "in"}, *CHAT]])
    expected = "x.jsonl row 2: the chat template refuses a conversation of system, user, assistant: "
    assert said.startswith(expected), said
    call = {"role": "assistant", "content": None, "tool_calls": [TOOL]}
    row = inputs(False, CALLS, messages=[[CHAT[0], call]], tools=[[TOOL]]).train[0]
    assert row["input_ids"].tolist() == [3, 1, 2, 0, 1, 3, 0], row
    assert row["labels"].tolist() == [-100, -100, -100, -100, -100, 3, 0], row
    found = inputs(False, FORGETS, messages=[CHAT * 2, CHAT])
    assert [row.tolist().count(-100) for row in (found.train[0]["labels"], found.train[1]["labels"])] == [10, 4]
    assert any(note.startswith("x.jsonl: 1 of 3 answers are not learned: ") for note in found.notes), found.notes
    assert not any("not learned" in note for note in inputs(False, CALLS, messages=[CHAT * 2]).notes)
    said = refused(THOUGHTS, messages=[CHAT])
    expected = "x.jsonl: the chat template renders answers differently from its generation prompt"
    assert said.startswith(expected), said


main()
