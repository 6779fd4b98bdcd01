"""Checkpoints that are there whole or not at all: written aside, brought to the disk, then renamed. Torch-free."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

from entrypoints.cli.errors import UsageError
from entrypoints.train.output import checkpoints

# Beside the checkpoints, so that the rename stays within one file system.
NAME = ".unfinished"
_REPLACED = ".replaced"
# With less free space than this, a failed checkpoint is reported as a full disk. Libraries report various errors.
_FULL_BYTES = 1 << 20


def folder(output: Path) -> Path:
    """Where checkpoints are written before they are published."""
    return output / NAME


def clear(output: Path) -> None:
    """Remove what an earlier process left unfinished."""
    restore(output)
    shutil.rmtree(folder(output), ignore_errors=True)


def restore(output: Path) -> None:
    """Restore a checkpoint whose process ended while replacing it."""
    for kept in folder(output).glob(f"*{_REPLACED}"):
        final = output / kept.name[: -len(_REPLACED)]
        if not final.exists():
            with contextlib.suppress(FileNotFoundError):  # another rank was faster
                kept.rename(final)


def publish(output: Path, name: str) -> None:
    """Make the finished checkpoint `name` visible. From here on, it survives a power failure.

    An existing checkpoint of this name is deleted only afterwards: it may be the only one.
    """
    written, final = folder(output) / name, output / name
    for path in [*written.rglob("*"), written]:
        _synchronize(path)
    if final.exists():  # this step was saved before: by an evaluation at the same step, or before a restart
        final.rename(folder(output) / f"{name}{_REPLACED}")
    written.rename(final)
    _synchronize(output)
    clear(output)


def rotate(output: Path, limit: int | None, best: str | None) -> None:
    """Delete the oldest checkpoints beyond `limit`, but never the newest complete one or the `best`."""
    if not limit or limit < 1:
        return
    present = checkpoints.all_in(output)
    newest, _ = checkpoints.last_whole(output)
    kept = {path for path in (newest, Path(best) if best else None) if path}
    surplus = max(0, len(present) - max(limit, len(kept)))
    for path in [path for path in present if path not in kept][:surplus]:
        shutil.rmtree(path)


def failed(output: Path, step: int, error: Exception) -> UsageError | None:
    """The error if the disk is full, None for other causes. Removes the unfinished checkpoint."""
    try:
        free = shutil.disk_usage(output).free
    except OSError:
        return None
    clear(output)
    if free >= _FULL_BYTES:
        return None
    last, _ = checkpoints.last_whole(output)
    resume = f", then resume from {last.name} with --resume_from_checkpoint true" if last else ""
    return UsageError(
        f"rank 0 on {os.uname().nodename}: --output_dir '{output}' is full, expected space for the checkpoint of "
        f"step {step} ({error}): free some space{resume}"
    )


def _synchronize(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
