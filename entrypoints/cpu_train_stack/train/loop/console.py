"""The output of a rank: unchanged on rank 0, with the rank in front of each line on other ranks."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Iterable
from typing import Any, TextIO

from cpu_train_stack.cli.say import say
from cpu_train_stack.machine.cpus import EMULATED


class PrefixedStream:
    """A text stream with a prefix in front of every line. All other attributes are those of `stream`."""

    def __init__(self, stream: TextIO, prefix: str) -> None:
        self._stream = stream
        self._prefix = prefix
        self._at_line_start = True

    def write(self, text: str) -> int:
        for line in text.splitlines(keepends=True):
            if self._at_line_start:
                self._stream.write(self._prefix)
            self._stream.write(line)
            self._at_line_start = line.endswith("\n")
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def note(message: str, rank: int = 0, kind: str = "note") -> None:
    """Print one line for the user, from rank 0 only."""
    if rank == 0:
        say(f"{kind}: {message}")


def notes(messages: Iterable[str], rank: int = 0) -> None:
    for message in messages:
        note(message, rank)


def bf16_warning(instructions: list[str]) -> str | None:
    """The warning for --bf16 on CPUs without bf16 instructions. `instructions`: cpus.bf16_of of every rank."""
    slow = [str(rank) for rank, kind in enumerate(instructions) if kind == EMULATED]
    if not slow:
        return None
    where = "this CPU has" if len(slow) == len(instructions) else f"the CPUs of rank {', '.join(slow)} have"
    return (
        f"--bf16: {where} no bf16 instructions (avx512_bf16 or amx_bf16), or ONEDNN_MAX_CPU_ISA hides them: "
        "matrix products are computed in fp32 and rounded, so training is no faster than without --bf16"
    )


def prepare(rank: int) -> None:
    """Prefix the lines of ranks above 0, and silence repeated messages of libraries."""
    # Users cannot fix deprecations in third-party code.
    warnings.filterwarnings("ignore", category=FutureWarning)
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    # Batches are small: a tokenizer's own threads would only compete with OpenMP's.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from transformers.utils import logging as transformers_logging

    # transformers lists new weights over many lines on every rank; the trainer prints one line.
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    if rank == 0:
        return
    before = (sys.stdout, sys.stderr)
    sys.stdout = PrefixedStream(sys.stdout, f"[rank {rank}] ")
    sys.stderr = PrefixedStream(sys.stderr, f"[rank {rank}] ")
    loggers = [logging.getLogger(), *(logging.getLogger(name) for name in logging.root.manager.loggerDict)]
    for handler in {handler for logger in loggers for handler in logger.handlers}:
        if isinstance(handler, logging.StreamHandler) and handler.stream in before:
            handler.setStream(sys.stdout if handler.stream is before[0] else sys.stderr)
