"""`--torch_compile`: what it needs beside torch."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path
from typing import Any

from entrypoints.errors import UsageError


def check(values: dict[str, Any]) -> None:
    """Raises UsageError if the flags ask for a compilation that cannot be done. `values`: TrainingArguments'."""
    backend, mode = values.get("torch_compile_backend"), values.get("torch_compile_mode")
    if not (values.get("torch_compile") or backend or mode):
        return
    from accelerate.utils import DynamoBackend
    from torch import _inductor

    backends = [kind.value.lower() for kind in DynamoBackend if kind.value != "NO"]
    for name, value, known in (("backend", backend, backends), ("mode", mode, [*_inductor.list_mode_options()])):
        if value and value.lower() not in known:
            raise UsageError(f"--torch_compile_{name} {value} is not known, expected one of: {', '.join(known)}")
    if (backend or "inductor") != "inductor":
        return
    compiler = os.environ.get("CXX") or "g++"
    spec = importlib.util.find_spec("torch")
    headers = Path(spec.origin).parent / "include" if spec and spec.origin else None
    lacks = [
        what
        for what, is_there in (
            (f"a C++ compiler ({compiler})", shutil.which(compiler) is not None),
            ("torch's headers", headers is not None and headers.is_dir()),
        )
        if not is_there
    ]
    if lacks:
        raise UsageError(
            f"--torch_compile makes C++ on CPUs, but {' and '.join(lacks)} are missing here: leave it out"
        )
