"""What `--torch_compile` needs beside torch."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path
from typing import Any

from entrypoints.cli.errors import UsageError


def check(values: dict[str, Any]) -> None:
    """Raises UsageError if the tools for compilation are missing. `values`: the fields of TrainingArguments."""
    backend = values.get("torch_compile_backend")
    if not (values.get("torch_compile") or backend or values.get("torch_compile_mode")):
        return
    if (backend or "inductor") != "inductor":
        return
    compiler = os.environ.get("CXX") or "g++"
    spec = importlib.util.find_spec("torch")
    headers = Path(spec.origin).parent / "include" if spec and spec.origin else None
    missing = [
        what
        for what, is_present in (
            (f"a C++ compiler ({compiler})", shutil.which(compiler) is not None),
            ("torch's headers", headers is not None and headers.is_dir()),
        )
        if not is_present
    ]
    if missing:
        raise UsageError(f"--torch_compile needs {' and '.join(missing)}, not found in this image: drop the flag")


def check_names(values: dict[str, Any]) -> None:
    """Raises UsageError for an unknown backend or mode. Needs accelerate and torch's compiler."""
    known: dict[str, list[str]] = {}
    if values.get("torch_compile_backend"):
        from accelerate.utils import DynamoBackend

        known["torch_compile_backend"] = [kind.value.lower() for kind in DynamoBackend if kind.value != "NO"]
    if values.get("torch_compile_mode"):
        from torch import _inductor  # its import takes seconds

        known["torch_compile_mode"] = [*_inductor.list_mode_options()]
    for name, names in known.items():
        if values[name].lower() not in names:
            raise UsageError(f"--{name} {values[name]} is unknown, expected one of: {', '.join(names)}")
