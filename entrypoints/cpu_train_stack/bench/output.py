"""The document of a measurement: its common keys, and where it goes."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from cpu_train_stack import contract
from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.files import write_atomic
from cpu_train_stack.cli.say import show
from cpu_train_stack.machine import cpus


def publish(document: Mapping[str, Any], file: Path | None, table: str | None = None) -> None:
    """Write the document to `file`, atomically. Without a file, print `table`, or the document.

    Raises UsageError if the file cannot be written, after printing the document.
    """
    text = json.dumps(document, indent=2)
    if file is None:
        show(table or text)
    else:
        try:
            write_atomic(file, text + "\n")
        except OSError as error:
            show(text)  # what took minutes to measure
            raise UsageError(
                f"cannot write '{file}' ({error.strerror}): use the document on standard output, which is the same"
            ) from error


def facts() -> dict[str, Any]:
    """The conditions of a measurement: processor, versions and the variables of the transports."""
    prefixes = ("CCL_", "FI_", "GLOO_")
    return {
        "pin": os.environ.get(contract.PIN, "unknown"),
        "torch": str(torch.__version__),
        "cpu": cpus.read_model().model,
        "environment": {name: value for name, value in sorted(os.environ.items()) if name.startswith(prefixes)},
    }
