"""The output folder: whether a run may use it, the checkpoint to resume from, and the job that owns it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cpu_train_stack.cli import files
from cpu_train_stack.cli.errors import FULL_DISK, UsageError
from cpu_train_stack.records import origin
from cpu_train_stack.train.model import adapters
from cpu_train_stack.train.output import checkpoints, integrity

RESULT = "result.json"
# The files of full weights.
FULL_WEIGHTS = (
    "model.safetensors",
    "model-*-of-*.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model-*-of-*.bin",
)
# Holds the names of the job that owns the folder. Trainer does not push files that start with an underscore.
_OWNER = "_job"


@dataclass(frozen=True)
class RunStart:
    """Where a run starts: at a checkpoint, or at the pretrained model (None).

    `replaces`: delete the folder's other checkpoints, which belong to an earlier run.
    """

    checkpoint: Path | None
    notes: Sequence[str] = ()
    replaces: bool = False


def job_name(environ: Mapping[str, str], flags: Mapping[str, Any]) -> str:
    """A name that is the same after every restart of this job; empty if no launcher would restart it.

    `flags`: the flags of the command line. Different flags are a different job.
    """
    name = origin.job_name(environ)
    command = json.dumps(flags, sort_keys=True, default=str)
    return f"{name} {hashlib.sha256(command.encode()).hexdigest()[:12]}" if name else ""


def choose_start(
    folder: Path, resume: str | None, overwrite: bool, jobs: Collection[str] = (), trains: bool = True
) -> RunStart:
    """Decide where to start. Deletes no checkpoint.

    `resume` is --resume_from_checkpoint: a path, "true" for the last complete checkpoint in `folder`, or None.
    `jobs`: this job's names, one per rank. If this job has already written to the folder, it resumes from its
    last checkpoint regardless of the flags; without a checkpoint, it starts as the flags specify.
    `trains`: whether the run saves weights. Raises UsageError for a checkpoint that cannot be used, and for a
    folder that holds another run, or other weights or read-only files if this run saves weights.
    """
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"--output_dir '{folder}' is a file, expected a folder")
    try:
        checkpoints.restore_replaced(folder)
    except OSError as error:
        raise _unwritable(folder, error) from error
    if trains:
        _refuse_read_only_files(folder)
    word = "false" if resume is None else resume.lower()
    from_last = word in ("true", "yes", "1")
    path = None if from_last or resume is None or word in ("false", "no", "0") else Path(resume)
    last, skipped = checkpoints.last_complete(folder, thorough=True)
    is_restart = bool(_owners(folder) & {job for job in jobs if job})
    notes = skipped if is_restart or from_last else []
    if is_restart:
        if last is not None:
            return RunStart(last, tuple(notes))
        notes.append(f"no checkpoint of this job in '{folder}' yet: starting as the flags specify")
        overwrite = False
    elif not overwrite and not from_last:
        _refuse_another_run(folder, path, trains)
    if path is not None:
        checkpoints.check(path, thorough=True)
    if from_last:
        path = last
        if last is None:
            notes.append(f"no checkpoint in '{folder}': starting from the pretrained model")
    return RunStart(path, tuple(notes), replaces=overwrite)


def _refuse_read_only_files(folder: Path) -> None:
    """Raise UsageError if this user cannot write to a file in the folder: saving the model could fail on it."""
    for path in sorted(folder.glob("[!._]*")):
        if path.is_file() and not os.access(path, os.W_OK):
            raise UsageError(
                f"--output_dir '{folder}' has files that user {os.getuid()} cannot write to, such as {path.name}: "
                "change their owner or mode, or choose another folder"
            )


def _refuse_another_run(folder: Path, checkpoint: Path | None, trains: bool) -> None:
    """Raise UsageError if the folder would mix files of two runs. `checkpoint`: where this run starts."""
    present = checkpoints.all_in(folder)
    if checkpoint is None or Path(os.path.realpath(checkpoint)).parent != Path(os.path.realpath(folder)):
        if present or (folder / RESULT).exists():
            raise UsageError(
                f"--output_dir '{folder}' holds an earlier run: choose another folder, or add "
                "--resume_from_checkpoint true to continue that run or --overwrite_output_dir to replace it"
            )
        if trains and any(found for pattern in (*FULL_WEIGHTS, adapters.CONFIG) for found in folder.glob(pattern)):
            raise UsageError(
                f"--output_dir '{folder}' holds a model: choose another folder, or add --overwrite_output_dir to "
                "replace it"
            )
        return
    step = checkpoints.step_of(checkpoint)
    later = [path.name for path in present if checkpoints.step_of(path) > step and not integrity.fault(path)]
    if later:
        raise UsageError(
            f"--output_dir '{folder}' holds {', '.join(later)}, later than --resume_from_checkpoint "
            f"'{checkpoint}': choose another folder, or pass --resume_from_checkpoint true to continue from the "
            "last checkpoint, or add --overwrite_output_dir to delete the other checkpoints"
        )


def check_kept(folder: Path, start: RunStart, model: str) -> None:
    """Raise UsageError if `start` deletes the model that the run needs, or the base of that adapter."""
    needed = {os.path.realpath(name) for name in (model, adapters.base_of(model)) if name}
    if start.replaces and any(os.path.realpath(path) in needed for path in _replaced(folder)):
        raise UsageError(
            f"--overwrite_output_dir deletes the model '{model}' in --output_dir '{folder}': choose another folder"
        )


def _replaced(folder: Path) -> list[Path]:
    """The folders of an earlier run that --overwrite_output_dir deletes."""
    merged = folder / adapters.MERGED
    return [*checkpoints.all_in(folder), *([merged] if merged.is_dir() else [])]


def prepare(folder: Path, start: RunStart | None = None, jobs: Collection[str] = ()) -> None:
    """Create the folder, check that it is writable, and delete an earlier run's result.

    With `start` (rank 0 only), also delete the checkpoints that `start` replaces, then record `jobs` as the names
    of the job that owns the folder. Raises UsageError on failure.
    """
    # Ranks in several containers share the folder, and may have the same process ID.
    probe = folder / f".writable.{uuid.uuid4().hex}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
        (folder / RESULT).unlink(missing_ok=True)
        checkpoints.clear_staging(folder)
        if start is not None:
            kept = os.path.realpath(start.checkpoint) if start.checkpoint else None
            for path in _replaced(folder) if start.replaces else ():
                if os.path.realpath(path) != kept:
                    checkpoints.remove(path)
            # Last: if this process is killed before, the next start must still delete the old checkpoints.
            names = sorted({*jobs} - {""})
            if names:
                probe.write_text("\n".join(names), encoding="utf-8")
                probe.replace(folder / _OWNER)
            else:
                (folder / _OWNER).unlink(missing_ok=True)
        probe.unlink(missing_ok=True)
    except OSError as error:
        raise _unwritable(folder, error) from error


def share_weights(folder: Path) -> None:
    """Give the final weights the mode of other new files. safetensors makes them readable by their owner only, and
    a container's user is rarely the user who reads them later.

    A file system may refuse: on an SMB share, all files belong to the user of the mount.
    """
    mask = os.umask(0)
    os.umask(mask)
    for path in folder.glob("*.safetensors"):
        with contextlib.suppress(OSError):
            path.chmod(0o666 & ~mask)


def _owners(folder: Path) -> set[str]:
    return set(files.text(folder / _OWNER).splitlines())


def _unwritable(folder: Path, error: OSError) -> UsageError:
    fix = "free some space" if error.errno in FULL_DISK else "change its owner or mode"
    return UsageError(
        f"--output_dir '{folder}' cannot be written to by user {os.getuid()} ({error.strerror or error}): "
        f"{fix}, or choose another folder"
    )
