"""Writes result.json: whole or not at all."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

NAME = "result.json"


def write(folder: Path, document: dict[str, Any]) -> Path:
    """Writes the document to FOLDER/result.json by way of a second file, so that no reader sees a half of it.

    Numbers that JSON does not have (NaN, infinity) become null.
    """
    path = folder / NAME
    partial = folder / f".{NAME}.{os.getpid()}"
    with partial.open("w", encoding="utf-8") as file:
        json.dump(_finite(document), file, indent=2, allow_nan=False)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    return path


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value


def window_means(losses: list[float], window: int) -> tuple[float | None, float | None]:
    """The mean loss over the first and over the last `window` steps; half of the steps if they would overlap."""
    if not losses:
        return None, None
    size = max(1, min(window, len(losses) // 2))
    return mean(losses[:size]), mean(losses[-size:])


def mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
