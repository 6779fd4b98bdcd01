"""Causal language modelling and supervised fine-tuning: a decoder predicts the next token."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Optional

import torch

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.train.data import language_rows
from cpu_train_stack.train.data.language_rows import Conversation, Documents, Kind
from cpu_train_stack.train.data.splits import Splits
from cpu_train_stack.train.data.tables import batches, parse_text_columns
from cpu_train_stack.train.data.token_files import TokenFolder
from cpu_train_stack.train.data.token_rows import TokenRows
from cpu_train_stack.train.data.types import Rows, TrainerInputs, of_both
from cpu_train_stack.train.flags.arguments import Task, TaskArguments
from cpu_train_stack.train.flags.flag import flag
from cpu_train_stack.train.model import sharding
from cpu_train_stack.train.model.pretrained import Loaded
from cpu_train_stack.train.tasks import chat, packing
from cpu_train_stack.train.tasks.sequences import Example, Padder, Sequences, sequence_length
from cpu_train_stack.train.tasks.tokens import IGNORED, Perplexity, RowSums, TokenLoss


@dataclass
class GenerationArguments(TaskArguments):
    packing: bool = flag("text-generation: put several rows into one sequence. No row sees another row.", False)
    completion_only_loss: Optional[bool] = flag(
        "text-generation: learn only the assistant's turns or the completions (default). false: learn all tokens."
    )
    chat_template_path: Optional[str] = flag("Jinja file with a chat template that replaces the tokenizer's.")


TASK = Task(
    name="text-generation",
    order=2,
    auto_class="AutoModelForCausalLM",
    peft_type="CAUSAL_LM",
    length=1024,
    flags="text_column_names label_smoothing_factor",
    arguments=GenerationArguments,
    columns="messages, or prompt and completion,",
    fits=lambda table, _label: language_rows.kind_of(table) is not None,
    takes_text=True,
)
# Two rows of this many tokens show whether a model separates packed rows.
_PROBE = 8


def read_rows(arguments: GenerationArguments, splits: Splits) -> Rows:
    """The rows for training and evaluation. Raises UsageError that names the first bad row."""
    rows = documents(arguments, splits, TASK)
    if arguments.completion_only_loss and (rows.train or rows.validation).kind is Kind.TEXT:
        raise UsageError(
            "--completion_only_loss needs rows with messages, or with prompt and completion, found rows of text: "
            "remove it"
        )
    return rows


def documents(arguments: TaskArguments, splits: Splits, task: Task) -> Rows:
    """The rows of a task that reads documents. Raises UsageError that names the first bad row."""
    names = parse_text_columns(arguments.text_column_names)
    if names is not None and len(names) != 1:
        raise UsageError(
            f"--text_column_names '{arguments.text_column_names}' names {len(names)} columns, expected one: "
            f"{task.name} uses one column of text"
        )
    column = names[0] if names else None
    train, validation = of_both(splits, lambda table: language_rows.documents(table, column))
    kinds = {split.kind for split in (train, validation) if split is not None}
    if len(kinds) > 1:
        found = " and ".join(sorted(kind.value for kind in kinds))
        raise UsageError(f"found {found}: training and validation data must have rows of the same kind")
    notes = [
        f"{split.source}: {split.empty} of {split.table.rows} rows are left out: no text"
        for split in (train, validation)
        if split is not None and split.empty
    ]
    return Rows(task, train, validation, None, (f"{task.name}: rows of {kinds.pop().value}", *notes))


def make_inputs(arguments: GenerationArguments, rows: Rows, loaded: Loaded, folder: TokenFolder) -> TrainerInputs:
    """Tokenize all rows.

    Raises UsageError for data with nothing to learn, and for a missing chat template.
    """
    length = sequence_length(arguments, TASK, loaded.limit)
    splits = [split for split in (rows.train, rows.validation) if split is not None]
    if arguments.chat_template_path or any(_has_conversations(split) for split in splits):
        chat.set_template(loaded.tokenizer, arguments.chat_template_path)
        chat.stop_after_answers(loaded.model.generation_config, loaded.tokenizer)  # is saved with the model
    everything = arguments.completion_only_loss is False
    notes: list[str] = []
    train, validation = of_both(
        rows, lambda data: _examples(data, loaded.tokenizer, length, everything, folder, notes)
    )
    bins = None
    if train is not None and arguments.packing:
        bins = packing.bins(train.lengths, length)
        notes.append(f"packing: {len(train)} rows in {len(bins)} sequences of up to {length} tokens")
    pad = loaded.tokenizer.pad_token_id
    return TrainerInputs(
        train=None if train is None else Sequences(train, bins),
        validation=None if validation is None else Sequences(validation),
        collate=Padder(0 if pad is None else pad, length, arguments.pad_to_max_length),
        compute_metrics=None if validation is None else Perplexity(len(validation)),
        metric="perplexity",
        max_seq_length=length,
        loss=TokenLoss(shift=True),
        reduce_logits=RowSums(shift=True),
        check_model=partial(_check_decoder, packed=bins is not None),
        notes=tuple(notes),
    )


def _has_conversations(data: Documents) -> bool:
    return data.kind is not Kind.TEXT and isinstance(next(iter(data.items)), Conversation)


def _examples(
    data: Documents, tokenizer: Any, length: int, everything: bool, folder: TokenFolder, notes: list[str]
) -> TokenRows:
    """The rows as tokens, cut at `length`. `everything`: learn the prompts too. Adds to `notes`."""
    counts: Counter[str] = Counter()
    file = folder.file(tokenizer, data.digest, TASK.name, data.kind.value, length, everything)
    if data.kind is Kind.TEXT:
        found = TokenRows(_pieces(data, tokenizer, length), 2, counts, file)
        if not found:
            raise UsageError(f"{data.source}: every text is shorter than two tokens, expected longer texts")
        return found
    found = TokenRows(_answers(data, tokenizer, length, everything, counts), 2, counts, file)
    if counts["cut"]:
        notes.append(
            f"{data.source}: {counts['cut']} of {len(data)} rows are truncated to --max_seq_length {length}"
        )
    if counts["changed"]:
        notes.append(
            f"{data.source}: {counts['changed']} of {counts['answers']} answers are not learned: the chat "
            "template renders them differently once the conversation continues: pass another template with "
            "--chat_template_path"
        )
    if counts["unanswered"]:
        notes.append(
            f"{data.source}: {counts['unanswered']} of {len(data)} rows are left out: no answer to learn within "
            f"{length} tokens"
        )
    if not found:
        items = (item for item in data.items if isinstance(item, Conversation))
        if any(chat.opens_differently(tokenizer, item) for item in items):
            raise UsageError(
                f"{data.source}: the chat template renders answers differently from its generation prompt, so "
                "that answers cannot be learned alone: pass another template as --chat_template_path, or "
                "--completion_only_loss false"
            )
        raise UsageError(
            f"{data.source}: no row has an answer of the assistant within {length} tokens: check the roles, or "
            "use a larger --max_seq_length"
        )
    return found


def _pieces(data: Documents, tokenizer: Any, length: int) -> Iterator[Example]:
    """The texts in pieces of at most `length` tokens. A piece of one token is left out: it predicts nothing."""
    for texts in batches(data.items):
        for ids in tokenizer(texts)["input_ids"]:
            ended = _with_end(ids, tokenizer)
            for begin in range(0, len(ended), length):
                piece = ended[begin : begin + length]
                if len(piece) > 1:
                    yield piece, [IGNORED, *piece[1:]]


def _answers(
    data: Documents, tokenizer: Any, length: int, everything: bool, counts: Counter[str]
) -> Iterator[Example]:
    """The rows with an answer to learn. Counts answers and rows that are left out, and rows that are cut."""
    for row, item in enumerate(data.items, 1):
        try:
            ids, labels = _with_labels(item, tokenizer, everything, counts)
        except UsageError as error:
            raise UsageError(f"{data.table.where(row)}: {error}") from error
        counts["cut"] += len(ids) > length
        if any(label != IGNORED for label in labels[1:length]):
            yield ids[:length], labels[:length]
        else:
            counts["unanswered"] += 1


def _with_labels(item: Any, tokenizer: Any, everything: bool, counts: Counter[str]) -> Example:
    """A row with labels for the model's answers, or for every token except the first if `everything`.

    Counts answers, and those that the template renders differently within the conversation.
    """
    special = not isinstance(item, Conversation)  # the template writes special tokens
    if isinstance(item, Conversation):
        text, spans = chat.render_with_answers(tokenizer, item)
        answers = 0 if everything else len(chat.answers(item))
        counts["answers"] += answers
        counts["changed"] += max(answers - len(spans), 0)
    else:
        text, spans = item[0] + item[1], [(len(item[0]), len(item[0]) + len(item[1]))]
    encoded = tokenizer(text, add_special_tokens=special, return_offsets_mapping=True)
    ids = list(encoded["input_ids"])
    # The first token of an answer may include a part of the prompt.
    answered = [
        any(begin < last and first < end for begin, end in spans) for first, last in encoded["offset_mapping"]
    ]
    if special:
        ids = _with_end(ids, tokenizer)
        if ids[-1] == tokenizer.eos_token_id:  # some tokenizers have added it
            answered[len(ids) - 1 :] = [True]
    labels = [token if everything or kept else IGNORED for token, kept in zip(ids, answered)]
    return ids, [IGNORED, *labels[1:]]  # nothing predicts the first token


def _with_end(ids: list[int], tokenizer: Any) -> list[int]:
    end = tokenizer.eos_token_id
    return ids if end is None or (ids and ids[-1] == end) else [*ids, end]


def _check_decoder(decoder: Any, packed: bool) -> None:
    """Refuse a model that sees the tokens that it has to predict, and a model that mixes packed rows."""
    decoder.eval()
    vocabulary = decoder.get_input_embeddings().weight.shape[0]
    first = torch.arange(_PROBE)[None] % vocabulary
    second = (torch.arange(_PROBE)[None] + _PROBE) % vocabulary
    positions = torch.arange(_PROBE)[None]
    with torch.no_grad():
        alone = decoder(input_ids=second, use_cache=False).logits
        shorter = decoder(input_ids=second[:, :-1], use_cache=False).logits
        ids, places = torch.cat([first, second], dim=1), torch.cat([positions, positions], dim=1)
        beside = decoder(input_ids=ids, position_ids=places, use_cache=False).logits if packed else None
    sharding.reshard(decoder)
    if _differ(alone[:, :-1], shorter):
        raise UsageError(
            f"a {type(decoder).__name__} sees the tokens that it has to predict, expected a decoder "
            "(a causal language model): use --task fill-mask for encoders"
        )
    if beside is not None and _differ(beside[:, _PROBE:], alone):
        raise UsageError(
            f"a {type(decoder).__name__} mixes the rows of a packed sequence in this release of transformers: "
            "remove --packing (--group_by_length reduces padding too)"
        )


def _differ(scores: torch.Tensor, others: torch.Tensor) -> bool:
    """Whether two tensors of scores (float, same shape) differ by more than rounding errors.

    Another input changes scores by a large part of their standard deviation.
    """
    error, spread = (scores.float() - others.float()).abs().mean(), others.float().std()
    return bool(error > (1e-3 if scores.dtype == torch.float32 else 3e-2) * spread)
