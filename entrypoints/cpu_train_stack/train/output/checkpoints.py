"""Checkpoints in the output folder: which are complete, how they are published, and which are deleted. Torch-free.

transformers writes the files of a checkpoint one by one: weights, optimizer, scheduler, random states, and
trainer_state.json last. A process that is killed in between leaves an incomplete folder. Therefore the trainer
lets transformers write to a staging folder, flushes the files to the disk, and then renames the folder.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cpu_train_stack.cli.errors import FULL_DISK, UsageError, one_line
from cpu_train_stack.cli.say import say
from cpu_train_stack.train.model import adapters
from cpu_train_stack.train.output.integrity import RANDOM_STATES, fault, read_json, tensors_of

_NAME = re.compile(r"checkpoint-([0-9]{1,18})")
_LABELS = ("id2label",)
# In the output folder: a rename works only within one file system.
_STAGING = ".unfinished"
_REPLACED = ".replaced"
# A failed checkpoint is reported as a full disk if this much cannot be written. Libraries report various errors.
_FULL_BYTES = 1 << 20


def step_of(path: Path) -> int:
    """The step in a checkpoint's name, -1 for other names."""
    found = _NAME.fullmatch(path.name)
    return int(found.group(1)) if found else -1


def all_in(output: Path) -> list[Path]:
    """What has the name of a checkpoint, complete or not, also links to nowhere, sorted by step."""
    if not output.is_dir():
        return []
    return sorted((path for path in output.iterdir() if step_of(path) >= 0), key=step_of)


def last_complete(output: Path, thorough: bool = False) -> tuple[Path | None, list[str]]:
    """The newest complete checkpoint, and one note for each newer incomplete one. `thorough`: see `fault`."""
    notes: list[str] = []
    for path in reversed(all_in(output)):
        found = fault(path, thorough)
        if found is None:
            return path, notes
        notes.append(f"{path.name} is skipped: {found}")
    return None, notes


def check(path: Path, thorough: bool = False) -> None:
    """Raise UsageError if training cannot resume from the checkpoint. `thorough`: see `fault`."""
    found = fault(path, thorough)
    if found is not None:
        raise UsageError(f"--resume_from_checkpoint '{path}': {found}, expected a complete checkpoint folder")


def check_same_model(path: Path, config: dict[str, Any], adapter: bool = False) -> None:
    """Raise UsageError for a checkpoint of another model or with other labels.

    `config`: the current model's configuration. `adapter`: whether the current model has an adapter.
    """
    if adapters.is_adapter(path) != adapter:
        found, expected = ("a full model", "an adapter") if adapter else ("an adapter", "a full model")
        raise UsageError(
            f"checkpoint '{path}' belongs to another run: found {found}, expected {expected}: resume with "
            "the same --use_peft"
        )
    config = {**config.get("text_config", {}), **config}
    # An adapter has a configuration if its labels have names. peft checks the shapes when it loads the weights.
    saved = read_json(path / "config.json") or {}
    saved = {**saved.get("text_config", {}), **saved}
    for name in _LABELS if adapter else ("model_type", "hidden_size", "num_hidden_layers", "vocab_size", *_LABELS):
        # A multimodal model has some of these for its text alone. JSON turns the numbers of labels into strings.
        expected = json.loads(json.dumps(config.get(name)))
        if name in saved and saved[name] != expected:
            raise UsageError(
                f"checkpoint '{path}' belongs to another run: its {name} is {saved[name]}, expected {expected}: "
                "resume with the same model and labels"
            )


def world_size_of(path: Path) -> int:
    """The number of ranks that wrote their random states into the checkpoint."""
    return len(list(path.glob(RANDOM_STATES)))


def staging_folder(output: Path) -> Path:
    """The folder in which checkpoints are written before `publish`."""
    return output / _STAGING


def clear_staging(output: Path) -> None:
    """Delete unfinished checkpoints of an earlier process."""
    restore_replaced(output)
    shutil.rmtree(staging_folder(output), ignore_errors=True)


def restore_replaced(output: Path) -> None:
    """Restore a checkpoint whose process ended while `publish` replaced it."""
    for kept in staging_folder(output).glob(f"*{_REPLACED}"):
        final = output / kept.name[: -len(_REPLACED)]
        if not final.exists():
            with contextlib.suppress(FileNotFoundError):  # another rank was faster
                kept.rename(final)


def publish(output: Path, name: str) -> None:
    """Move the finished checkpoint `name` from the staging folder to the output folder.

    After this, the checkpoint survives a power failure. An existing checkpoint of this name is deleted last,
    because no other checkpoint may exist. Raises full_disk_error: some file systems report a full disk only now.
    """
    written, final = staging_folder(output) / name, output / name
    with full_disk_reported(output, f"the checkpoint of step {step_of(final)}"):
        for path in [*written.rglob("*"), written]:
            _flush(path)
        if os.path.lexists(final):  # saved before, by an evaluation at the same step or before a restart
            final.rename(staging_folder(output) / f"{name}{_REPLACED}")
        written.rename(final)
        _flush(output)
    clear_staging(output)


def rotate(output: Path, limit: int | None, best: str | None) -> None:
    """Delete the oldest checkpoints beyond `limit`, except the newest, the newest complete one, and `best`.

    A checkpoint that cannot be deleted does not end the training: a warning, and the next call tries again.
    """
    if not limit or limit < 1:
        return
    present = all_in(output)
    complete, _ = last_complete(output)
    # With --save_only_model, no checkpoint is complete.
    kept = {os.path.realpath(path) for path in (*present[-1:], complete, Path(best) if best else None) if path}
    surplus = max(0, len(present) - max(limit, len(kept)))
    for path in [path for path in present if os.path.realpath(path) not in kept][:surplus]:
        with contextlib.suppress(OSError):
            remove(path)
        if os.path.lexists(path):  # another user's, or a file in it is open on NFS
            say(f"warning: cannot delete '{path}' (--save_total_limit {limit}): check its owner and mode")


def remove(path: Path) -> None:
    """Delete a checkpoint, or the link to one."""
    if path.is_symlink() or not path.is_dir():
        path.unlink()
    else:
        shutil.rmtree(path)


@contextlib.contextmanager
def full_disk_reported(output: Path, what: str, writes: bool = True, then: str | None = None) -> Iterator[None]:
    """Raise full_disk_error instead of errors inside the block that a full disk has caused.

    `writes`: whether this rank writes.
    """
    try:
        yield
    except Exception as error:
        full = full_disk_error(output, what, error, then) if writes else None
        if full is None:
            raise
        raise full from error


def full_disk_error(output: Path, what: str, error: Exception, then: str | None = None) -> UsageError | None:
    """The error to report if `error` was caused by a full disk, otherwise None.

    `what`: what was to be written. `then`: what to do with free space; by default, to resume from the last
    checkpoint. Deletes the staging folder and what is incomplete.
    """
    is_full = _is_full(output) or any(os.strerror(number) in str(error) for number in FULL_DISK)
    clear_staging(output)
    shutil.rmtree(output / adapters.UNFINISHED, ignore_errors=True)
    if not is_full:
        return None
    for path in output.glob("*.safetensors"):
        if tensors_of(path) is None:
            path.unlink()
    last, _ = last_complete(output)
    if then is None and last is not None:
        then = f"resume from {last.name} with --resume_from_checkpoint true"
    return UsageError(
        f"rank 0 on {os.uname().nodename}: --output_dir '{output}' is full, expected space for {what} "
        f"({one_line(error)}): free some space{f', then {then}' if then else ''}"
    )


def _is_full(folder: Path) -> bool:
    """Whether _FULL_BYTES cannot be written. The free space of a disk does not show a quota."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(os.urandom(_FULL_BYTES))  # zeros take no space on a disk that compresses
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return error.errno in FULL_DISK
    return False


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some file systems cannot flush a folder, such as VirtualBox's vboxsf
            raise
    finally:
        os.close(descriptor)
